/* Bytes that are born and die at the places of a pass: their sum and the most at once. */
#include "workloads/run/footprint-pass.h"

int64_t pass_round(int64_t bytes)
{
    const int64_t unit = 512;
    return (MAX(bytes, 1) + unit - 1) / unit * unit;
}

Profile profile_then(Profile first, Profile second)
{
    return (Profile){first.net_bytes + second.net_bytes, MAX(first.peak_bytes, first.net_bytes + second.peak_bytes)};
}

void timeline_init(Timeline *timeline, int n)
{
    *timeline = (Timeline){.born = g_new0(int64_t, n), .dead = g_new0(int64_t, n), .n = n};
}

void timeline_alive(Timeline *timeline, int64_t bytes, int from, int to)
{
    timeline->born[from] += bytes;
    timeline->dead[to] += bytes;
}

void timeline_born(Timeline *timeline, int64_t bytes, int at)
{
    timeline->born[at] += bytes;
}

void timeline_dead(Timeline *timeline, int64_t bytes, int at)
{
    timeline->dead[at] += bytes;
}

int timeline_end_parts(Timeline *timeline, Profile *ret_parts)
{
    int n = 0;
    ret_parts[0] = (Profile){0, 0};
    for (int i = 0; i < timeline->n; i++) {
        ret_parts[n].net_bytes += timeline->born[i];
        ret_parts[n].peak_bytes = MAX(ret_parts[n].peak_bytes, ret_parts[n].net_bytes);
        if (n < timeline->n_cuts && timeline->cuts[n] == i) {
            ret_parts[++n] = (Profile){0, 0};
        }
        ret_parts[n].net_bytes -= timeline->dead[i];
    }
    g_free(timeline->born);
    g_free(timeline->dead);
    return n + 1;
}

Profile timeline_end(Timeline *timeline)
{
    Profile parts[TIMELINE_PARTS_MAX], all = {0, 0};
    int n = timeline_end_parts(timeline, parts);
    for (int i = 0; i < n; i++) {
        all = profile_then(all, parts[i]);
    }
    return all;
}

void timeline_unshard(Timeline *timeline, const GroupBytes *group, int at)
{
    timeline_alive(timeline, group->cast, at, at);
    timeline_born(timeline, group->flat, at);
}

void timeline_wait(Timeline *timeline, const GroupBytes *group, int at, gboolean frees_flat, int64_t last_flat)
{
    timeline_dead(timeline, last_flat, at);
    timeline_born(timeline, group->params, at + 1);
    timeline_alive(timeline, group->alone_extra, at + 1, at + 1);
    timeline_dead(timeline, frees_flat ? group->flat : 0, at + 1);
}

int64_t timeline_reduce(Timeline *timeline, const GroupBytes *group, int at, int64_t pending, gboolean first)
{
    int64_t lingering = group->lingers ? group->last_grad : 0;
    if (group->grads == 0) {
        return pending;
    }
    if (group->plain) {
        timeline_dead(timeline, first ? 0 : group->grads, at + 1);
        return 0;
    }
    timeline_dead(timeline, pending, at);
    timeline_born(timeline, group->reduce_in, at + 1);
    timeline_dead(timeline, group->grads - lingering, at + 1);
    timeline_born(timeline, group->reduce_out, at + 2);
    if (!first || !group->out_is_grad) {
        timeline_born(timeline, first ? group->shard_grad : 0, at + 3);
        timeline_dead(timeline, group->reduce_out, at + 3);
    }
    timeline_dead(timeline, lingering, at + 3);
    return group->reduce_in;
}
