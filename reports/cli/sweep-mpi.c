/*
 * Messages. TAG_BLOCK, to a rank: first job and end of a block. TAG_ROW, from a rank: the job (8 bytes), whether its point
 * has a row (1 byte), the row's text. TAG_HOME, to a rank: stop; TAG_BYE, its answer, the last message from it. Jobs are
 * those of the shard. All calls of MPI are made by the main thread, which never waits inside them: MPI's waiting spins.
 */
#include "reports/cli/sweep-mpi.h"

#include <mpi.h>
#include <string.h>

#include "sim/base/error.h"

enum { TAG_BLOCK, TAG_ROW, TAG_HOME, TAG_BYE };
enum { HEAD_BYTES = 9, AHEAD = 4, THREAD_AHEAD = 16, IDLE_US = 500 };

/* What a process of an MPI job finds in its environment; starting MPI without need takes long. */
static gboolean is_launched(void)
{
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < G_N_ELEMENTS(marks); i++) {
        if (g_getenv(marks[i]) != NULL) {
            return TRUE;
        }
    }
    return FALSE;
}

gboolean sweep_mpi_begin(int *ret_rank, int *ret_n_ranks, GError **error)
{
    int provided = MPI_THREAD_SINGLE;
    *ret_rank = 0;
    *ret_n_ranks = 1;
    if (!is_launched()) {
        return TRUE;
    }
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "MPI could not be started with threads; use --shard");
        return FALSE;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, ret_rank);
    MPI_Comm_size(MPI_COMM_WORLD, ret_n_ranks);
    return TRUE;
}

static gboolean is_on(void)
{
    int on = 0;
    MPI_Initialized(&on);
    return on;
}

gboolean sweep_mpi_agree(gboolean ready)
{
    int word = ready;
    if (is_on()) {
        MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    return word;
}

void sweep_mpi_end(void)
{
    if (is_on()) {
        MPI_Finalize();
    }
}

static gboolean has_come(int from, int tag, MPI_Status *ret_status)
{
    int found = 0;
    MPI_Iprobe(from, tag, MPI_COMM_WORLD, &found, ret_status);
    return found;
}

/* A message without content. */
static void send_word(int rank, int tag)
{
    MPI_Send(NULL, 0, MPI_BYTE, rank, tag, MPI_COMM_WORLD);
}

static void receive_word(int rank, int tag)
{
    MPI_Recv(NULL, 0, MPI_BYTE, rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* ---- rank 0 ---- */

/* Rank 0's view of the others. */
typedef struct Others {
    int64_t *n_waiting; /* [rank]: jobs that it has been given and not sent back */
    int64_t n_waiting_max;
    int64_t first_job;
    int n_ranks;
} Others;

static char *receive_row(const MPI_Status *status, int64_t *ret_job)
{
    int length;
    MPI_Get_count(status, MPI_BYTE, &length);
    g_autofree char *message = g_malloc((gsize)length + 1);
    MPI_Recv(message, length, MPI_BYTE, status->MPI_SOURCE, TAG_ROW, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    g_assert(length >= HEAD_BYTES);
    memcpy(ret_job, message, sizeof *ret_job);
    return message[HEAD_BYTES - 1] != 0 ? g_strndup(message + HEAD_BYTES, (gsize)length - HEAD_BYTES) : NULL;
}

static gboolean give_block(OrderedRun *run, Others *others, int rank)
{
    int64_t block[2];
    if (others->n_waiting[rank] > others->n_waiting_max || !ordered_run_take(run, &block[0], &block[1])) {
        return FALSE;
    }
    others->n_waiting[rank] += block[1] - block[0];
    block[0] += others->first_job;
    block[1] += others->first_job;
    MPI_Send(block, 2, MPI_INT64_T, rank, TAG_BLOCK, MPI_COMM_WORLD);
    return TRUE;
}

static void poll_others(OrderedRun *run, void *data)
{
    Others *others = data;
    MPI_Status status;
    while (has_come(MPI_ANY_SOURCE, TAG_ROW, &status)) {
        int64_t job;
        char *row = receive_row(&status, &job);
        others->n_waiting[status.MPI_SOURCE]--;
        ordered_run_publish(run, job - others->first_job, row);
    }
    gboolean given = TRUE;
    while (given) { /* a block each, in turn, so that none waits while another has many */
        given = FALSE;
        for (int rank = 1; rank < others->n_ranks; rank++) {
            given = give_block(run, others, rank) || given;
        }
    }
}

void sweep_mpi_run(const SweepWork *work, int n_threads, int64_t n_jobs, const SweepRowSink *sink)
{
    Others others = {.first_job = work->first_job, .n_waiting_max = AHEAD + (int64_t)THREAD_AHEAD * (n_threads - 1)};
    MPI_Comm_size(MPI_COMM_WORLD, &others.n_ranks);
    others.n_waiting = g_new0(int64_t, others.n_ranks);
    sweep_workers_run_with(work, n_threads, n_jobs, sink, (others.n_ranks - 1) * n_threads, poll_others, &others);
    g_free(others.n_waiting);
}

void sweep_mpi_dismiss(void)
{
    int n_ranks = 1, n_left;
    MPI_Status status;
    if (is_on()) {
        MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    }
    for (int rank = 1; rank < n_ranks; rank++) {
        send_word(rank, TAG_HOME);
    }
    for (n_left = n_ranks - 1; n_left > 0;) {
        int64_t job;
        if (has_come(MPI_ANY_SOURCE, TAG_ROW, &status)) { /* of a run that was ended */
            g_free(receive_row(&status, &job));
        } else if (has_come(MPI_ANY_SOURCE, TAG_BYE, &status)) {
            receive_word(status.MPI_SOURCE, TAG_BYE);
            n_left--;
        } else {
            g_usleep(IDLE_US);
        }
    }
}

/* ---- the others ---- */

typedef struct Block {
    int64_t first, end;
} Block;

typedef struct Row {
    int64_t job;
    char *text; /* NULL: none */
} Row;

typedef struct Server {
    const SweepWork *work;
    GAsyncQueue *blocks; /* Block; one without jobs ends a thread */
    GAsyncQueue *rows;   /* Row */
    gint ending;
} Server;

static void *evaluate_blocks(void *data)
{
    Server *server = data;
    SweepEvaluator *evaluator = sweep_evaluator_new(server->work);
    for (;;) {
        g_autofree Block *block = g_async_queue_pop(server->blocks);
        if (block->first == block->end) {
            break;
        }
        for (int64_t job = block->first; job < block->end && !g_atomic_int_get(&server->ending); job++) {
            Row *row = g_new(Row, 1);
            *row = (Row){job, sweep_evaluator_row(evaluator, job)};
            g_async_queue_push(server->rows, row);
        }
    }
    sweep_evaluator_free(evaluator);
    return NULL;
}

static void row_free(void *data)
{
    Row *row = data;
    g_free(row->text);
    g_free(row);
}

/* Takes the row. */
static void send_row(Row *row)
{
    gsize length = row->text != NULL ? strlen(row->text) : 0;
    g_autofree char *message = g_malloc(HEAD_BYTES + length);
    memcpy(message, &row->job, sizeof row->job);
    message[HEAD_BYTES - 1] = row->text != NULL;
    if (length > 0) {
        memcpy(message + HEAD_BYTES, row->text, length);
    }
    MPI_Send(message, (int)(HEAD_BYTES + length), MPI_BYTE, 0, TAG_ROW, MPI_COMM_WORLD);
    row_free(row);
}

static gboolean receive_block(Server *server)
{
    int64_t numbers[2];
    MPI_Status status;
    if (!has_come(0, TAG_BLOCK, &status)) {
        return FALSE;
    }
    MPI_Recv(numbers, 2, MPI_INT64_T, 0, TAG_BLOCK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    Block *block = g_new(Block, 1);
    *block = (Block){numbers[0], numbers[1]};
    g_async_queue_push(server->blocks, block);
    return TRUE;
}

static void serve_until_home(Server *server)
{
    MPI_Status status;
    while (!has_come(0, TAG_HOME, &status)) {
        Row *row = g_async_queue_try_pop(server->rows);
        if (row != NULL) {
            send_row(row);
        }
        if (!receive_block(server) && row == NULL) {
            row = g_async_queue_timeout_pop(server->rows, IDLE_US);
            if (row != NULL) {
                send_row(row);
            }
        }
    }
    receive_word(0, TAG_HOME);
    while (receive_block(server)) { /* sent before and not wanted any more */
    }
}

void sweep_mpi_serve(const SweepWork *work, int n_threads)
{
    Server server = {.work = work};
    server.blocks = g_async_queue_new_full(g_free);
    server.rows = g_async_queue_new_full(row_free);
    g_autoptr(GPtrArray) threads = g_ptr_array_new();
    for (int i = 0; i < n_threads; i++) {
        g_ptr_array_add(threads, g_thread_new("sweep", evaluate_blocks, &server));
    }
    serve_until_home(&server);
    g_atomic_int_set(&server.ending, 1);
    for (int i = 0; i < n_threads; i++) {
        g_async_queue_push(server.blocks, g_new0(Block, 1));
    }
    for (guint i = 0; i < threads->len; i++) {
        g_thread_join(g_ptr_array_index(threads, i));
    }
    send_word(0, TAG_BYE);
    g_async_queue_unref(server.blocks);
    g_async_queue_unref(server.rows);
}
