/*
 * Collectives: what each file in hw/coll provides, and what they share.
 */
#pragma once

#include "hw/cluster.h"
#include "hw/law.h"

/* Seconds alone, and bytes over the busiest link of each level (coll_load()). */
typedef struct CollTime {
    double seconds;
    double bytes[N_NET_LEVELS];
} CollTime;

typedef struct CollClass {
    const char *name;
    LawKind law; /* its link law inside a scale-up domain */
    /* For a group of at least two ranks; bytes as in coll_ns(). */
    CollTime (*time)(const Cluster *cluster, const CollGroup *group, double bytes);
} CollClass;

/* A ring or exchange inside one domain of n ranks: `moved` bytes per rank and direction, `n_hops` steps in a row. */
double coll_domain_seconds(const Cluster *cluster, LawKind law, int64_t n_hops, double moved);

/* The same over the NICs: bytes per rank and direction, steps in a row. */
double coll_outside_seconds(const Cluster *cluster, int64_t n_hops, double moved);

/* Domains that a group touches. */
int64_t coll_n_domains(const CollGroup *group);

/*
 * All-gather or reduce-scatter: within a domain every rank moves all but its own part; across domains each rank sends
 * the part that it stands for once round, and the domains spread it inside. The slower of the two levels counts, with
 * the first step of the other before it.
 */
CollTime coll_gather_time(const Cluster *cluster, LawKind law, const CollGroup *group, double bytes);

/* An exchange of parts that may be unequal, and even ones. */
CollTime coll_exchange_time(const Cluster *cluster, const CollGroup *group, const CollExchange *exchange);
CollTime coll_even_exchange_time(const Cluster *cluster, const CollGroup *group, double part);
