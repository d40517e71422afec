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
    *timeline = (Timeline){g_new0(int64_t, n), g_new0(int64_t, n), n};
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

Profile timeline_end(Timeline *timeline)
{
    Profile profile = {0, 0};
    for (int i = 0; i < timeline->n; i++) {
        profile.net_bytes += timeline->born[i];
        profile.peak_bytes = MAX(profile.peak_bytes, profile.net_bytes);
        profile.net_bytes -= timeline->dead[i];
    }
    g_free(timeline->born);
    g_free(timeline->dead);
    return profile;
}
