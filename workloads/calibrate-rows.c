#include "workloads/calibrate-rows.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"

static double number(TableRow *row, const char *column)
{
    int at = csv_table_find(row->table, column);
    double value = 0.0;
    if (row->failed) {
        return 0.0;
    }
    if (at < 0) {
        row->failed = TRUE;
        g_set_error(row->error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s:1: no column \"%s\", which rows named \"%s\" need", csv_table_name(row->table), column,
                    row->name);
        return 0.0;
    }
    if (!csv_table_number(row->table, row->row, (size_t)at, &value, row->error)) {
        row->failed = TRUE;
    }
    return value;
}

static int64_t count(TableRow *row, const char *column)
{
    double value = number(row, column);
    if (!row->failed && (value < 1.0 || value > 1e15 || value != floor(value))) {
        row->failed = TRUE;
        g_set_error(row->error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%zu: %s: %g is no count; whole numbers from 1",
                    csv_table_name(row->table), csv_table_line(row->table, row->row), column, value);
    }
    return row->failed ? 1 : (int64_t)value;
}

/* The count, or what stands for a column that the table does not have. */
static int64_t count_or(TableRow *row, const char *column, int64_t or_else)
{
    return csv_table_find(row->table, column) < 0 ? or_else : count(row, column);
}

static gboolean is(const TableRow *row, const char *name)
{
    return strcmp(row->name, name) == 0;
}

static Work *add(FitSample *sample, WorkLaw law, double flops, int64_t read_bytes, int64_t write_bytes)
{
    g_assert(sample->n_works < FIT_WORKS_MAX);
    Work *work = &sample->works[sample->n_works++];
    *work = (Work){.law = law, .flops = flops, .read_bytes = read_bytes, .write_bytes = write_bytes, .n_launches = 1};
    return work;
}

static RowUse gemm(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    static const struct {
        const char *name;
        WorkLaw law;
    } layouts[] = {{"nt_forward", WORK_GEMM_NT}, {"nn_dgrad", WORK_GEMM_NN}, {"tn_wgrad", WORK_GEMM_TN}};
    int64_t m = count(row, "m"), n = count(row, "n"), k = count(row, "k");
    for (size_t i = 0; i < G_N_ELEMENTS(layouts); i++) {
        if (is(row, layouts[i].name)) {
            Work *work =
                add(sample, layouts[i].law, 2.0 * (double)m * (double)n * (double)k, 2 * (m * k + n * k), 2 * m * n);
            work->dtype = DTYPE_BF16;
            work->m = m;
            work->n = n;
            work->k = k;
            /* The weight's two sizes: its products in all three directions are one shape. */
            int64_t a = layouts[i].law == WORK_GEMM_TN ? m : n, b = layouts[i].law == WORK_GEMM_TN ? n : k;
            sample->shape = g_strdup_printf("%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT, MIN(a, b), MAX(a, b));
            *ret_law = LAW_gemm;
            return ROW_USED;
        }
    }
    return ROW_UNUSED;
}

/* Rows per group: even, or falling as a power of the group's rank; what rounding leaves goes to the first. */
static int64_t *split_rows(int64_t n_groups, int64_t total, const char *skew)
{
    int64_t *rows = g_new(int64_t, n_groups);
    double exponent = g_ascii_strtod(skew, NULL), sum = 0.0;
    gboolean even = strcmp(skew, "even") == 0;
    int64_t given = 0;
    for (int64_t i = 0; i < n_groups; i++) {
        sum += pow((double)(i + 1), -exponent);
    }
    for (int64_t i = 0; i < n_groups; i++) {
        rows[i] = even ? total / n_groups : (int64_t)((double)total * pow((double)(i + 1), -exponent) / sum);
        given += rows[i];
    }
    rows[0] += even ? 0 : total - given;
    return rows;
}

static RowUse grouped_gemm(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t experts = count(row, "experts"), n = count(row, "n"), k = count(row, "k"), total = count(row, "rows");
    int skew = csv_table_find(row->table, "skew");
    gboolean wgrad = is(row, "wgrad");
    if (!wgrad && !is(row, "forward") && !is(row, "dgrad")) {
        return ROW_UNUSED;
    }
    if (row->failed || skew < 0) {
        return ROW_WRONG;
    }
    int64_t *rows = split_rows(experts, total, csv_table_cell(row->table, row->row, (size_t)skew));
    int64_t used = 0;
    for (int64_t i = 0; i < experts; i++) {
        used += rows[i];
    }
    double flops = 2.0 * (double)used * (double)n * (double)k;
    int64_t weights = 2 * experts * n * k;
    Work *work = wgrad ? add(sample, WORK_GROUPED_GEMM_WGRAD, flops, 2 * used * (n + k), weights)
                       : add(sample, WORK_GROUPED_GEMM, flops, 2 * used * k + weights, 2 * used * n);
    work->dtype = DTYPE_BF16;
    work->m = wgrad ? k : used;
    work->n = n;
    work->k = wgrad ? used : k;
    work->n_groups = experts;
    work->group_rows = rows;
    sample->shape = g_strdup_printf("%" G_GINT64_FORMAT " of %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT, experts,
                                    MIN(n, k), MAX(n, k));
    *ret_law = LAW_grouped_gemm;
    return ROW_USED;
}

/* FLOPs and bytes as the attention operator counts them: causal pairs, softmax included. */
static RowUse attention(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    gboolean backward = g_str_has_suffix(row->name, "bwd");
    int64_t seq = count(row, "seq"), heads = count(row, "heads"), d = count(row, "head_dim");
    int64_t batch = count_or(row, "batch", 1), kv_heads = count_or(row, "kv_heads", heads),
            dv = count_or(row, "v_dim", d);
    double rows = (double)(batch * heads * seq), pairs = rows * ((double)seq + 1.0) / 2.0;
    double flops = backward ? pairs * (6.0 * (double)d + 4.0 * (double)dv + 6.0) + rows * 2.0 * (double)dv
                            : pairs * (2.0 * (double)(d + dv) + 5.0) + rows * ((double)dv + 2.0);
    int64_t tokens = batch * seq;
    int64_t qkv = 2 * tokens * (heads * d + kv_heads * (d + dv)), out = 2 * tokens * heads * dv,
            lse = 4 * tokens * heads;
    Work *work = backward ? add(sample, WORK_ATTENTION_BACKWARD, flops, qkv + 2 * out + lse, qkv)
                          : add(sample, WORK_ATTENTION_FORWARD, flops, qkv, out + lse);
    work->dtype = DTYPE_BF16;
    work->m = tokens;
    work->n = heads;
    work->k = d;
    work->n_groups = batch;
    *ret_law = backward ? LAW_attention_backward : LAW_attention_forward;
    return ROW_USED;
}

static RowUse kda(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    gboolean backward = g_str_has_suffix(row->name, "bwd");
    int64_t tokens = count(row, "seq"), heads = count(row, "heads"), d = count(row, "head_dim");
    Work *work = add(sample, backward ? WORK_KDA_BACKWARD : WORK_KDA_FORWARD, 0.0, 0, 0);
    work->dtype = DTYPE_BF16;
    work->m = tokens;
    work->n = heads;
    work->k = d;
    work->n_groups = 1;
    /* A dozen kernels and their checks: short sequences wait for the host, which the step's host stream accounts for.
     */
    sample->host_min_s = backward ? 2.23e-3 : 0.84e-3;
    *ret_law = backward ? LAW_kda_backward : LAW_kda_forward;
    return ROW_USED;
}

static RowUse attnres(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    gboolean backward = is(row, "fused_bwd");
    if (!backward && !is(row, "fused_fwd")) {
        return ROW_UNUSED;
    }
    int64_t n = count(row, "sources"), bytes = 2 * count(row, "tokens") * count(row, "hidden");
    add(sample, backward ? WORK_ATTNRES_BACKWARD : WORK_ATTNRES_FORWARD, 0.0, (n + backward) * bytes,
        backward ? n * bytes : bytes);
    /* Four sources take as long as the host needs for the call; nine show the device. */
    sample->host_min_s = backward ? 0.67e-3 : 0.29e-3;
    *ret_law = backward ? LAW_attnres_backward : LAW_attnres_forward;
    return ROW_USED;
}

static RowUse stream(TableRow *row, FitSample *sample, WorkLaw law, LawKind *ret_law)
{
    add(sample, law, 0.0, (int64_t)number(row, "read_bytes"), (int64_t)number(row, "write_bytes"));
    *ret_law = law_of_work(law);
    return ROW_USED;
}

/* The fused kernels of linear layer and cross entropy, forward and backward; the other rows are chains of operators. */
static RowUse loss(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    if (!is(row, "cce")) {
        return ROW_UNUSED;
    }
    /* the table counts three products; the kernels form the logits a second time in backward */
    add(sample, WORK_LOSS, (double)count(row, "flops") * 4.0 / 3.0, 0, 0)->dtype = DTYPE_BF16;
    *ret_law = LAW_loss;
    return ROW_USED;
}

static RowUse strided(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    return stream(row, sample, WORK_STRIDED, ret_law);
}

static RowUse concat(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    return stream(row, sample, WORK_CONCAT, ret_law);
}

static RowUse transpose(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    return stream(row, sample, WORK_TRANSPOSE, ret_law);
}

static RowUse conv1d(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    return stream(row, sample, WORK_CONV1D, ret_law);
}

static RowUse cast(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    return stream(row, sample, WORK_COPY, ret_law);
}

static RowUse pointwise(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    return stream(row, sample, WORK_ELEMENTWISE, ret_law);
}

static RowUse copy(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t bytes = count(row, "bytes");
    add(sample, WORK_COPY, 0.0, bytes / 2, bytes / 2);
    *ret_law = LAW_copy;
    return ROW_USED;
}

static RowUse elementwise(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t bytes = count(row, "bytes"); /* two operands and a result */
    add(sample, WORK_ELEMENTWISE, 0.0, bytes / 3 * 2, bytes / 3);
    *ret_law = LAW_elementwise;
    return ROW_USED;
}

/* SiLU and product are two kernels. */
static RowUse activation(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t one = 2 * count(row, "tokens") * count(row, "width");
    add(sample, WORK_ELEMENTWISE, 0.0, one, one);
    add(sample, WORK_ELEMENTWISE, 0.0, 2 * one, one);
    *ret_law = LAW_elementwise;
    return ROW_USED;
}

static RowUse norm(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t hidden = count(row, "hidden"), one = 2 * count(row, "tokens") * hidden;
    WorkLaw law = is(row, "rms_norm_input_grad")    ? WORK_NORM_BACKWARD
                  : is(row, "rms_norm_weight_grad") ? WORK_NORM_WEIGHT_GRAD
                                                    : WORK_NORM_FORWARD;
    Work *work = add(sample, law, 0.0, law == WORK_NORM_FORWARD ? one : 2 * one,
                     law == WORK_NORM_WEIGHT_GRAD ? 2 * hidden : one);
    work->m = count(row, "tokens");
    work->n = hidden;
    *ret_law = law_of_work(law);
    return ROW_USED;
}

static RowUse softmax(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t one = 4 * count(row, "rows") * count(row, "width");
    Work *work = add(sample, WORK_SOFTMAX, 0.0, is(row, "log_softmax_backward") ? 2 * one : one, one);
    work->m = count(row, "rows");
    work->n = count(row, "width");
    *ret_law = LAW_softmax;
    return ROW_USED;
}

static RowUse reduce(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t tokens = count(row, "tokens"), hidden = count(row, "hidden");
    int64_t results = is(row, "sum_rows") ? tokens : is(row, "sum_cols") ? hidden : 1;
    add(sample, WORK_REDUCE, 0.0, 2 * tokens * hidden, 2 * results);
    *ret_law = LAW_reduce;
    return ROW_USED;
}

static RowUse optimizer(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t n = count(row, "params"); /* weight, gradient and two moments in, all but the gradient out, fp32 */
    add(sample, WORK_OPTIMIZER, 0.0, 16 * n, 12 * n);
    *ret_law = LAW_optimizer;
    return ROW_USED;
}

static RowUse chunk_cat(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    int64_t n = count(row, "elements");
    add(sample, WORK_CHUNK_CAT, 0.0, 2 * n, 4 * n);
    *ret_law = LAW_chunk_cat;
    return ROW_USED;
}

/* Gathers and scatters of rows: rows x width, or tokens x topk rows of hidden. */
static RowUse rows_of_tokens(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    gboolean direct = csv_table_find(row->table, "width") >= 0;
    int64_t rows = direct ? count(row, "rows") : count(row, "tokens") * count(row, "topk");
    int64_t width = count(row, direct ? "width" : "hidden");
    int64_t bytes = 2 * rows * width;
    if (g_str_has_prefix(row->name, "index_add")) {
        Work *work = add(sample, WORK_SCATTER_ADD, 0.0, 2 * bytes + 8 * rows, bytes);
        work->m = rows;
        work->n = width;
        *ret_law = LAW_scatter_add;
        return ROW_USED;
    }
    Work *gather = add(sample, WORK_GATHER, 0.0, bytes + 8 * rows, bytes);
    gather->m = rows;
    gather->n = width;
    gather->k = is(row, "gather_weighted_sum") ? 0 : count(row, direct ? "destinations" : "tokens"); /* 0: all differ */
    *ret_law = LAW_gather;
    if (is(row, "gather_weighted_sum")) {
        add(sample, WORK_WEIGHTED_SUM, 0.0, bytes, bytes / count(row, "topk"));
        *ret_law = LAW_weighted_sum;
    }
    return ROW_USED;
}

static RowUse topk(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    gboolean with_sigmoid = is(row, "sigmoid_topk");
    int64_t m = count(row, with_sigmoid ? "tokens" : "rows"), n = count(row, with_sigmoid ? "experts" : "width");
    int64_t k = count(row, with_sigmoid ? "topk" : "k");
    if (with_sigmoid) {
        add(sample, WORK_ELEMENTWISE, 0.0, 4 * m * n, 4 * m * n);
    }
    Work *work = add(sample, WORK_TOPK, 0.0, 4 * m * n, 12 * m * k);
    work->m = m;
    work->n = n;
    work->k = k;
    *ret_law = LAW_topk;
    return ROW_USED;
}

static RowUse sort(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    gboolean waits = is(row, "argsort_expert_ids");
    int64_t n = count(row, waits ? "slots" : "elements");
    Work *work = add(sample, WORK_SORT, 0.0, 8 * n, 16 * n);
    work->m = n;
    work->n = 1;
    /* Thirteen launches: below half a million elements the device waits for the host. */
    sample->host_min_s = waits ? 88e-6 : 0.0;
    *ret_law = LAW_sort;
    return ROW_USED;
}

static RowUse router(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    return is(row, "argsort_expert_ids") ? sort(row, sample, ret_law) : topk(row, sample, ret_law);
}

static RowUse host_link(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    if (!g_str_has_suffix(row->name, "_pinned")) {
        return ROW_UNUSED;
    }
    sample->is_link = TRUE;
    sample->link_bytes = (double)count(row, "bytes");
    sample->link_bytes_per_s = row->device->host_link_bytes_per_s;
    sample->size = sample->link_bytes;
    *ret_law = LAW_host_link;
    return ROW_USED;
}

/* Bytes that one rank moves in one direction, by collective; two ranks of one domain. */
/* The larger share of an exchange with unequal parts: "fraction_to_rank1=0.75". */
static double larger_share(const TableRow *row)
{
    int at = csv_table_find(row->table, "note");
    const char *note = at >= 0 ? csv_table_cell(row->table, row->row, (size_t)at) : "", *equals = strchr(note, '=');
    double share = equals != NULL ? g_ascii_strtod(equals + 1, NULL) : 0.5;
    return share > 0.0 && share < 1.0 ? fmax(share, 1.0 - share) : 0.5;
}

static RowUse collective(TableRow *row, FitSample *sample, LawKind *ret_law)
{
    static const struct {
        const char *name;
        LawKind law;
        double moved_frac;
    } kinds[] = {
        {"all_gather", LAW_all_gather, 0.5},        {"reduce_scatter", LAW_reduce_scatter, 0.5},
        {"all_reduce", LAW_all_reduce, 1.0},        {"all_to_all", LAW_all_to_all, 0.5},
        {"all_to_all_uneven", LAW_all_to_all, 0.5}, {"send_recv", LAW_send_recv, 1.0},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (is(row, kinds[i].name) && count(row, "ranks") == 2) {
            double bytes = (double)count(row, "bytes");
            sample->is_link = TRUE;
            sample->link_bytes = bytes * kinds[i].moved_frac;
            sample->link_bytes_per_s = row->device->scale_up_bytes_per_s;
            sample->size = bytes;
            if (is(row, "all_to_all_uneven")) {
                /* Lists of splits: 24 us more than without them at 4 MiB, where both wait for the host. */
                sample->host_more_s = 24e-6;
                sample->one_way_bytes = bytes * larger_share(row);
            }
            *ret_law = kinds[i].law;
            return ROW_USED;
        }
    }
    return ROW_UNUSED;
}

static const struct {
    const char *family;
    RowUse (*read)(TableRow *row, FitSample *sample, LawKind *ret_law);
} families[] = {
    {"activation", activation},
    {"attention", attention},
    {"attention_more", attention},
    {"attnres", attnres},
    {"attnres_more", attnres},
    {"cast", cast},
    {"chunk_cat", chunk_cat},
    {"concat", concat},
    {"conv1d", conv1d},
    {"copy", copy},
    {"elementwise", elementwise},
    {"gemm", gemm},
    {"grouped_gemm", grouped_gemm},
    {"host_link", host_link},
    {"kda", kda},
    {"loss", loss},
    {"norm", norm},
    {"norm_backward", norm},
    {"norm_forward", norm},
    {"norm_weight_grad", norm},
    {"optimizer", optimizer},
    {"optimizer_steps", optimizer},
    {"permute", rows_of_tokens},
    {"pointwise", pointwise},
    {"reduce", reduce},
    {"router", router},
    {"rows", rows_of_tokens},
    {"softmax", softmax},
    {"sort", sort},
    {"strided", strided},
    {"topk", topk},
    {"transpose", transpose},
    {"unpermute", rows_of_tokens},
};

RowUse calibrate_row(const char *family, TableRow *row, FitSample *sample, LawKind *ret_law)
{
    RowUse use = ROW_UNUSED;
    if (g_str_has_prefix(family, "collectives")) {
        use = collective(row, sample, ret_law);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(families); i++) {
        if (strcmp(families[i].family, family) == 0) {
            use = families[i].read(row, sample, ret_law);
        }
    }
    if (use == ROW_USED) {
        sample->seconds = number(row, "seconds");
        if (!row->failed && sample->seconds <= 0.0) {
            row->failed = TRUE;
            g_set_error(row->error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%zu: seconds: a measured time is above 0",
                        csv_table_name(row->table), csv_table_line(row->table, row->row));
        }
    }
    return row->failed ? ROW_WRONG : use;
}
