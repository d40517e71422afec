/*
 * Link load: which part of the links of a device an activity takes while it runs alone, and what is left of its speed
 * when others take parts of the same links.
 *
 * A collective moves bytes over several links at once (port, NIC, uplinks), and goes on at one pace on all of them. So it
 * is one flow over all its links, that needs a part of each: while its pace is r, 0 to 1 of what it is alone, it takes r x
 * part. Paces are max-min fair: all rise together until a link is full; those that go over it stay there, and the others rise
 * on. So nobody is slowed down by who shares no full link with him, and alone, or beside others that leave enough,
 * everybody goes at the pace 1: then a duration found alone (a closed form) holds as it is.
 *
 * Measured between two GPUs (hw/calibration/h200/collective_pairs_2gpu.csv), paces fall together, within 7 %, however different
 * the parts are; a half for each would be off by 21 %.
 *
 * All in whole numbers, rounded so that no link carries more than it can: the same everywhere.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

enum { LINK_LOADS_MAX = 4, LINK_PART_BITS = 10, LINK_PART_ONE = 1023, LINK_PACE_ONE = 65536, LINK_LOAD_BITS = 40 };

/* Parts of LINK_LOADS_MAX links, LINK_PART_BITS each, in 1023rds of the link; 0 = none of any. */
typedef uint64_t LinkLoad;

/* All bits that a load can have: what a field of LINK_LOAD_BITS keeps of it. */
#define LINK_LOAD_MASK (((LinkLoad)1 << LINK_LOAD_BITS) - 1)

/* Of LINK_LOADS_MAX parts, each cut to 0 … 1. One that is more than 0 stays so. */
LinkLoad link_load_of(const double *parts);

static inline guint32 link_load_part(LinkLoad load, int link)
{
    return (guint32)(load >> (link * LINK_PART_BITS)) & LINK_PART_ONE;
}

/* The larger part of each link. */
LinkLoad link_load_max(LinkLoad a, LinkLoad b);

/* Whether some link is not enough for all. */
gboolean link_loads_meet(const LinkLoad *loads, int n);

/* Max-min fair paces of n activities that run at once, in 65536ths; each at least 1. */
void link_load_paces(const LinkLoad *loads, int n, guint32 *ret_paces);
