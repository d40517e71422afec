/* Built without MPI. */
#include <stdlib.h>

#include "reports/cli/sweep-mpi.h"
#include "sim/base/error.h"

gboolean sweep_mpi_begin(int *ret_rank, int *ret_n_ranks, GError **error)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"};
    *ret_rank = 0;
    *ret_n_ranks = 1;
    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
        const char *size = g_getenv(sizes[i]);
        if (size != NULL && atoi(size) > 1) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE,
                        "this moesim was built without MPI: install libopenmpi-dev and build it again, or use --shard");
            return FALSE;
        }
    }
    return TRUE;
}

gboolean sweep_mpi_agree(gboolean ready)
{
    return ready;
}

void sweep_mpi_serve(const SweepWork *work, int n_threads)
{
    (void)work;
    (void)n_threads;
    g_assert_not_reached();
}

void sweep_mpi_run(const SweepWork *work, int n_threads, int64_t n_jobs, const SweepRowSink *sink)
{
    (void)work;
    (void)n_threads;
    (void)n_jobs;
    (void)sink;
    g_assert_not_reached();
}

void sweep_mpi_dismiss(void)
{
}

void sweep_mpi_end(void)
{
}
