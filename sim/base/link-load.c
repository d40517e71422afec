#include "sim/base/link-load.h"

#include <math.h>

LinkLoad link_load_of(const double *parts)
{
    LinkLoad load = 0;
    for (int l = 0; l < LINK_LOADS_MAX; l++) {
        double part = fmin(fmax(parts[l], 0.0), 1.0);
        LinkLoad whole = (LinkLoad)(part * LINK_PART_ONE + 0.5);
        load |= (part > 0.0 ? MAX(whole, 1) : 0) << (l * LINK_PART_BITS);
    }
    return load;
}

LinkLoad link_load_max(LinkLoad a, LinkLoad b)
{
    LinkLoad load = 0;
    for (int l = 0; l < LINK_LOADS_MAX; l++) {
        load |= (LinkLoad)MAX(link_load_part(a, l), link_load_part(b, l)) << (l * LINK_PART_BITS);
    }
    return load;
}

gboolean link_loads_meet(const LinkLoad *loads, int n)
{
    for (int l = 0; l < LINK_LOADS_MAX; l++) {
        guint32 sum = 0;
        for (int i = 0; i < n; i++) {
            sum += link_load_part(loads[i], l);
        }
        if (sum > LINK_PART_ONE) {
            return TRUE;
        }
    }
    return FALSE;
}

/* Pace at which a link is full, if all that still rise (pace 0) rise together; 65536ths, rounded down. */
static uint64_t full_at(const LinkLoad *loads, int n, const guint32 *paces, int link)
{
    uint64_t left = (uint64_t)LINK_PART_ONE * LINK_PACE_ONE, rising = 0;
    for (int i = 0; i < n; i++) {
        uint64_t part = link_load_part(loads[i], link);
        left -= paces[i] * part;
        rising += paces[i] == 0 ? part : 0;
    }
    return rising > 0 ? left / rising : G_MAXUINT64;
}

void link_load_paces(const LinkLoad *loads, int n, guint32 *ret_paces)
{
    for (int i = 0; i < n; i++) {
        ret_paces[i] = 0;
    }
    for (;;) {
        uint64_t least = LINK_PACE_ONE;
        int link = -1;
        for (int l = 0; l < LINK_LOADS_MAX; l++) {
            uint64_t pace = full_at(loads, n, ret_paces, l);
            if (pace < least) {
                least = pace;
                link = l;
            }
        }
        for (int i = 0; i < n; i++) {
            if (ret_paces[i] == 0 && (link < 0 || link_load_part(loads[i], link) > 0)) {
                ret_paces[i] = (guint32)MAX(least, 1);
            }
        }
        if (link < 0) {
            return;
        }
    }
}
