/*
 * A sweep over the processes of one MPI job: rank 0 takes the rows and writes the file, all evaluate.
 *
 * Every rank reads the sweep file for itself. A rank gets blocks of neighbouring points, and sends each row as soon as it
 * has it. When a rank is lost, MPI ends the job: the file then holds the finished rows, and --resume goes on from there.
 * Built without MPI, a job of several processes is refused rather than run as many times as it has processes.
 */
#pragma once

#include "reports/cli/sweep-workers.h"

/*
 * Joins the job if this process is one of several: the rank, and how many there are (1: none but this).
 * Errors: MOESIM_ERROR_USAGE.
 */
gboolean sweep_mpi_begin(int *ret_rank, int *ret_n_ranks, GError **error);

/* Whether rank 0 is ready to run: what it says, all ranks get. */
gboolean sweep_mpi_agree(gboolean ready);

/* On ranks other than 0: evaluates what rank 0 sends, until it says that it is done. */
void sweep_mpi_serve(const SweepWork *work, int n_threads);

/* On rank 0, in the place of sweep_workers_run; n_threads on every rank. */
void sweep_mpi_run(const SweepWork *work, int n_threads, int64_t n_jobs, const SweepRowSink *sink);

/* Rank 0 sends the others home. */
void sweep_mpi_dismiss(void);

/* Leaves the job. Does nothing when there is none. */
void sweep_mpi_end(void);
