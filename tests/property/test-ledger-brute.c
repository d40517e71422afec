/*
 * Programs of nothing but memory, drawn at random: a beginning and an ending that many programs share, and between them
 * heads of their own, which leave the allocator in ever other states. Through one memo each must have the ledger that it
 * has alone. Sizes are such that much of what the fold goes by happens: blocks that are larger than was asked for, ties,
 * segments that one head leaves behind and another does not.
 */
#include "tests/property/ledger-check.h"

#include "sim/base/rng.h"

enum { N_WORLDS = 120, N_HEADS = 60, N_KEPT = 16, N_TEMPORARY = 6, N_ENDING_CALLS = 30, N_BEGIN_CALLS = 4, N_HEAD_BUFFERS = 6, KEPT_CALLS = 4 };

/* Buffers: kept by the beginning, of one call, of heads. Two of these, which are alike, live on into the ending. */
enum { FIRST_TEMPORARY = N_KEPT, FIRST_OF_HEAD = N_KEPT + N_TEMPORARY, N_BUFFERS = FIRST_OF_HEAD + N_HEAD_BUFFERS + N_KEPT };

static const int64_t MIB = 1 << 20;

typedef struct World {
    uint64_t seed, n_draws;
    GPtrArray *segments; /* Segment: of the beginning, then of the ending */
} World;

static uint64_t draw(World *world, uint64_t n)
{
    return rng_below(world->seed, RNG_TEST, world->n_draws++, n);
}

/* A few sizes that come again and again, some of them with a little more than whole MiB. */
static int64_t draw_bytes(World *world)
{
    static const int64_t mib[] = {2, 3, 8, 12, 20, 21, 24, 30, 40, 41, 60, 64};
    static const int64_t more[] = {0, 0, 512, 300000, 900000, -1000, -700000};
    if (draw(world, 6) == 0) {
        return 512 + (int64_t)draw(world, 200000);
    }
    return mib[draw(world, G_N_ELEMENTS(mib))] * MIB + more[draw(world, G_N_ELEMENTS(more))];
}

static void add_instr(GArray *instrs, InstrKind kind, gint32 buffer, int64_t bytes, int stream, int tag)
{
    Instr instr = {.kind = (guint8)kind, .place = {ARG_FRAME, buffer}, .bytes = bytes, .stream = (guint8)stream, .tag = (guint8)tag,
                   .tier = TIER_HBM, .phase = PHASE_BACKWARD};
    g_array_append_val(instrs, instr);
}

static void take(World *world, GArray *instrs, gint32 buffer)
{
    int stream = draw(world, 4) == 0 ? STREAM_GATHER : STREAM_COMPUTE;
    add_instr(instrs, INSTR_ALLOC, buffer, draw_bytes(world), stream, (int)draw(world, N_MEM_TAGS));
}

static void give(GArray *instrs, gint32 buffer)
{
    add_instr(instrs, INSTR_FREE, buffer, 0, 0, 0);
}

/* Buffers of one call: taken, and given back in some other order. */
static void use_temporary(World *world, GArray *instrs)
{
    gint32 n = 1 + (gint32)draw(world, N_TEMPORARY), turn = (gint32)draw(world, (uint64_t)n);
    for (gint32 i = 0; i < n; i++) {
        take(world, instrs, FIRST_TEMPORARY + i);
    }
    for (gint32 i = 0; i < n; i++) {
        give(instrs, FIRST_TEMPORARY + (i + turn) % n);
    }
}

static Segment *add_segment(World *world)
{
    g_autoptr(Program) program = program_new();
    int segment = program_add_segment(program, "memory", NULL);
    g_ptr_array_add(world->segments, segment_ref(program_segment(program, segment)));
    return program_segment(program, segment);
}

static void make_beginning(World *world)
{
    for (gint32 call = 0; call < N_BEGIN_CALLS; call++) {
        GArray *instrs = add_segment(world)->instrs;
        for (gint32 i = call * (N_KEPT / N_BEGIN_CALLS); i < (call + 1) * (N_KEPT / N_BEGIN_CALLS); i++) {
            use_temporary(world, instrs);
            take(world, instrs, i);
        }
    }
}

/* Each call has temporary buffers; the first ones keep what was kept, or something else in its place, under another name, for
 * a few calls. */
static void make_ending(World *world)
{
    gboolean marks_forward = draw(world, 4) == 0, moves = draw(world, 4) == 0;
    for (gint32 call = 0; call < N_ENDING_CALLS; call++) {
        GArray *instrs = add_segment(world)->instrs;
        use_temporary(world, instrs);
        if (call == 1 || call == 3) {
            give(instrs, FIRST_OF_HEAD + call / 3);
        }
        if (call < N_KEPT) {
            gint32 kept = FIRST_OF_HEAD + N_HEAD_BUFFERS + call;
            if (!moves || call % 3 > 0) {
                give(instrs, call);
                take(world, instrs, call);
            }
            add_instr(instrs, INSTR_MOVE, call, 0, 0, 0);
            g_array_index(instrs, Instr, instrs->len - 1).to = (Place){ARG_FRAME, kept};
        }
        if (call >= KEPT_CALLS && call < N_KEPT + KEPT_CALLS) {
            give(instrs, FIRST_OF_HEAD + N_HEAD_BUFFERS + call - KEPT_CALLS);
        }
        if (marks_forward && call == 5) {
            add_instr(instrs, INSTR_MARK, 0, 0, 0, 0);
            g_array_index(instrs, Instr, instrs->len - 1).phase = PHASE_FORWARD;
        }
        use_temporary(world, instrs);
    }
}

/* A head takes large blocks, now and then of another stream; the first two live on, as large in every head. */
static void make_head(World *world, GArray *instrs, int64_t kept_bytes)
{
    gint32 n = 1 + (gint32)draw(world, N_HEAD_BUFFERS - 1), first = (gint32)draw(world, 2);
    for (gint32 i = 2; i <= n; i++) {
        int stream = draw(world, 100) == 0 ? STREAM_GATHER : STREAM_COMPUTE;
        add_instr(instrs, INSTR_ALLOC, FIRST_OF_HEAD + i, (10 + (int64_t)draw(world, 120)) * MIB, stream, MEM_LOGITS);
    }
    for (gint32 i = 0; i < 2; i++) {
        add_instr(instrs, INSTR_ALLOC, FIRST_OF_HEAD + (i + first) % 2, kept_bytes, STREAM_COMPUTE, MEM_LOGITS);
    }
    for (gint32 i = 2; i <= n; i++) {
        give(instrs, FIRST_OF_HEAD + i);
    }
}

static void add_call(Program *program, int segment)
{
    Call call = {.segment = segment, .layer = -1};
    g_array_append_val(program->calls, call);
}

/* Calls of shared segments in a row, as a run. */
static void add_run(Program *program, const World *world, guint first, guint n, guint32 id)
{
    ProgramRun run = {program->calls->len, n, id};
    g_array_append_val(program->runs, run);
    for (guint i = first; i < first + n; i++) {
        add_call(program, program_share_segment(program, g_ptr_array_index(world->segments, i)));
    }
}

static Program *make_program(World *world, int64_t kept_bytes)
{
    Program *program = program_new();
    program->n_buffers = N_BUFFERS;
    program->expandable_segments = world->seed % 4 == 3;
    program->static_bytes[MEM_PARAMETERS] = 100 * MIB;
    add_run(program, world, 0, N_BEGIN_CALLS, 1);
    add_call(program, program_add_segment(program, "head", NULL));
    make_head(world, program_segment(program, (int)program->segments->len - 1)->instrs, kept_bytes);
    add_run(program, world, N_BEGIN_CALLS, N_ENDING_CALLS, 2);
    return program;
}

static void drop_segment(void *segment)
{
    segment_unref(segment);
}

static void test_endings(void **state)
{
    (void)state;
    g_autoptr(LedgerMemo) memo = ledger_memo_new();
    for (uint64_t seed = 1; seed <= N_WORLDS; seed++) {
        World world = {.seed = seed, .segments = g_ptr_array_new_with_free_func(drop_segment)};
        g_autoptr(GPtrArray) programs = g_ptr_array_new_with_free_func((GDestroyNotify)program_free);
        make_beginning(&world);
        make_ending(&world);
        int64_t kept_bytes = draw_bytes(&world);
        for (int head = 0; head < N_HEADS; head++) {
            g_autoptr(GError) error = NULL;
            g_autofree char *what = g_strdup_printf("world %d, head %d", (int)seed, head);
            Program *program = make_program(&world, kept_bytes);
            g_ptr_array_add(programs, program); /* the memo names its segments */
            Ledger alone, folded;
            assert_true(ledger_run(program, 0, &alone, &error));
            assert_true(ledger_run_memo(memo, program, 0, &folded, &error));
            check_ledger(&folded, &alone, what);
        }
        ledger_memo_clear(memo);
        g_ptr_array_unref(world.segments);
    }
    const LedgerEndingCounts *counts = ledger_memo_ending_counts(memo);
    print_message("# endings: %d known, %d met, %d from logs, %d of them odd, %d calls walked\n", (int)counts->n_known, (int)counts->n_met,
                  (int)counts->n_replayed, (int)counts->n_odd, (int)counts->n_calls_walked);
    assert_true(counts->n_known > 100 && counts->n_met > 100 && counts->n_replayed > 100 && counts->n_odd > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_endings)};
    return cmocka_run_group_tests_name("ledger-brute", tests, NULL, NULL);
}
