/*
 * moesim net TRANSFERS.csv: when each of many transfers on a cluster ends, sharing its links at max-min fair rates.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "hw/transfers.h"
#include "reports/cli/command.h"
#include "reports/out/csv.h"
#include "sim/base/csv-read.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

typedef struct NetOptions {
    char *cluster;
    gint64 nodes, gpus_per_node;
    gboolean json, latency;
} NetOptions;

/* Value of a number that is not on the command line. */
static const gint64 NOT_GIVEN = G_MININT64;

static void init(void *values)
{
    NetOptions *options = values;
    options->nodes = options->gpus_per_node = NOT_GIVEN;
}

/* What a table may hold, in the order of output; the first and the last may be left out. */
enum { COLUMN_ID, COLUMN_FROM, COLUMN_TO, COLUMN_BYTES, COLUMN_START, N_COLUMNS };

static const char *const column_names[N_COLUMNS] = {"id", "from_rank", "to_rank", "bytes", "start_s"};

typedef struct Net {
    CsvTable *table;
    int columns[N_COLUMNS]; /* -1 = not there */
    Transfer *transfers;
    size_t n;
    int64_t last_rank, last_host; /* highest that the table names, -1 = none */
} Net;

static void net_clear(Net *net)
{
    csv_table_free(net->table);
    g_free(net->transfers);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Net, net_clear)

static const double RANK_MAX = 1e8, BYTES_MAX = 9e18, START_S_MAX = 1e9;

static gboolean find_columns(Net *net, GError **error)
{
    const char *name = csv_table_name(net->table);
    for (int c = 0; c < N_COLUMNS; c++) {
        net->columns[c] = csv_table_find(net->table, column_names[c]);
        if (net->columns[c] < 0 && c != COLUMN_ID && c != COLUMN_START) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s:1: no column \"%s\"; a table of transfers has id, from_rank, to_rank, bytes, start_s", name,
                        column_names[c]);
            return FALSE;
        }
    }
    for (size_t i = 0; i < csv_table_n_columns(net->table); i++) {
        const char *column = csv_table_column(net->table, i);
        if (!g_strv_contains((const char *const[]){"id", "from_rank", "to_rank", "bytes", "start_s", NULL}, column)) {
            const char *nearest = error_nearest_name(column, column_names, N_COLUMNS);
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:1: %s: unknown column%s%s%s", name, column,
                        nearest != NULL ? "; did you mean \"" : "; columns are id, from_rank, to_rank, bytes, start_s",
                        nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
            return FALSE;
        }
    }
    if (csv_table_n_rows(net->table) == 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: no transfers below the header", name);
        return FALSE;
    }
    return TRUE;
}

static gboolean cell_error(const Net *net, size_t row, int column, const char *what, GError **error)
{
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%" G_GSIZE_FORMAT ": %s: '%s' is %s",
                csv_table_name(net->table), csv_table_line(net->table, row), column_names[column],
                csv_table_cell(net->table, row, (size_t)net->columns[column]), what);
    return FALSE;
}

/* "3" is a rank, "host0" the host memory of a node. */
static gboolean read_end(Net *net, size_t row, int column, int64_t *ret_end, GError **error)
{
    const char *text = csv_table_cell(net->table, row, (size_t)net->columns[column]);
    gboolean is_host = g_str_has_prefix(text, "host");
    guint64 number;
    if (!g_ascii_string_to_unsigned(is_host ? text + strlen("host") : text, 10, 0, (guint64)RANK_MAX, &number, NULL)) {
        return cell_error(net, row, column, "no rank: expected a whole number from 0, or host0 for the memory of node 0",
                          error);
    }
    *ret_end = is_host ? topology_host((int64_t)number) : (int64_t)number;
    int64_t *last = is_host ? &net->last_host : &net->last_rank;
    *last = MAX(*last, (int64_t)number);
    return TRUE;
}

static gboolean read_bytes(const Net *net, size_t row, double *ret_bytes, GError **error)
{
    const char *text = csv_table_cell(net->table, row, (size_t)net->columns[COLUMN_BYTES]);
    int64_t bytes;
    if (csv_table_number(net->table, row, (size_t)net->columns[COLUMN_BYTES], ret_bytes, NULL)) {
        if (*ret_bytes >= 0.0 && *ret_bytes <= BYTES_MAX) {
            return TRUE;
        }
    } else if (quantity_parse_bytes(text, &bytes, NULL)) {
        *ret_bytes = (double)bytes;
        return TRUE;
    }
    return cell_error(net, row, COLUMN_BYTES, "no size: expected bytes from 0, or a size with a unit (\"8 MiB\")", error);
}

static gboolean read_row(Net *net, size_t row, GError **error)
{
    Transfer *transfer = &net->transfers[row];
    double start_s = 0.0;
    if (!read_end(net, row, COLUMN_FROM, &transfer->from, error) || !read_end(net, row, COLUMN_TO, &transfer->to, error) ||
        !read_bytes(net, row, &transfer->bytes, error)) {
        return FALSE;
    }
    const char *text = net->columns[COLUMN_START] < 0
                           ? ""
                           : csv_table_cell(net->table, row, (size_t)net->columns[COLUMN_START]);
    if (text[0] != '\0' && (!csv_table_number(net->table, row, (size_t)net->columns[COLUMN_START], &start_s, NULL) ||
                            start_s < 0.0 || start_s > START_S_MAX)) {
        return cell_error(net, row, COLUMN_START, "no time: expected seconds from 0 to 1e9", error);
    }
    transfer->start_ns = start_s * 1e9;
    return TRUE;
}

/* Two rows of one name could not be told apart. */
static gboolean check_ids(const Net *net, GError **error)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);
    for (size_t row = 0; net->columns[COLUMN_ID] >= 0 && row < net->n; row++) {
        const char *id = csv_table_cell(net->table, row, (size_t)net->columns[COLUMN_ID]);
        if (id[0] != '\0' && !g_hash_table_add(seen, (gpointer)(guintptr)id)) {
            return cell_error(net, row, COLUMN_ID, "the id of an earlier transfer; every one has its own", error);
        }
    }
    return TRUE;
}

static gboolean net_read(Net *net, const char *path, GError **error)
{
    net->table = csv_table_load(path, error);
    if (net->table == NULL || !find_columns(net, error)) {
        return FALSE;
    }
    net->n = csv_table_n_rows(net->table);
    net->transfers = g_new0(Transfer, net->n);
    net->last_rank = net->last_host = -1;
    for (size_t row = 0; row < net->n; row++) {
        if (!read_row(net, row, error)) {
            return FALSE;
        }
    }
    return check_ids(net, error);
}

/* The cluster that the options name; without --nodes as many as the table needs. */
static Cluster *find_cluster(const Net *net, const NetOptions *options, GError **error)
{
    if (options->cluster == NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE,
                    "net: --cluster is missing: a hardware preset (\"moesim hw\" lists them) or the path of a descriptor");
        return NULL;
    }
    if (options->nodes != NOT_GIVEN && (options->nodes < 1 || options->nodes > CLUSTER_NODES_MAX)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "net: --nodes: %" G_GINT64_FORMAT " is not a number from 1 to %d",
                    options->nodes, CLUSTER_NODES_MAX);
        return NULL;
    }
    if (options->gpus_per_node != NOT_GIVEN && options->gpus_per_node < 1) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "net: --gpus-per-node: %" G_GINT64_FORMAT " is not a number from 1",
                    options->gpus_per_node);
        return NULL;
    }
    int64_t per_node = options->gpus_per_node == NOT_GIVEN ? 0 : options->gpus_per_node;
    g_autoptr(Cluster) cluster = cluster_load(options->cluster, options->nodes == NOT_GIVEN ? 1 : options->nodes, per_node, error);
    if (cluster != NULL && options->nodes == NOT_GIVEN) {
        int64_t nodes = MAX(net->last_rank / cluster->gpus_per_node, net->last_host) + 1;
        int64_t gpus_per_node = cluster->gpus_per_node;
        cluster_free(g_steal_pointer(&cluster));
        cluster = cluster_load(options->cluster, nodes, gpus_per_node, error);
    }
    return g_steal_pointer(&cluster);
}

static gboolean check_ends(const Net *net, const Cluster *cluster, GError **error)
{
    for (size_t row = 0; row < net->n; row++) {
        for (int column = COLUMN_FROM; column <= COLUMN_TO; column++) {
            int64_t end = column == COLUMN_FROM ? net->transfers[row].from : net->transfers[row].to;
            if (end >= cluster->n_ranks || end < topology_host(cluster->n_nodes - 1)) {
                g_autofree char *what = g_strdup_printf(
                    "not in the cluster, which has %" G_GINT64_FORMAT " nodes of %" G_GINT64_FORMAT " GPUs",
                    cluster->n_nodes, cluster->gpus_per_node);
                return cell_error(net, row, column, what, error);
            }
        }
    }
    return TRUE;
}

/* Time of the first byte's way, where a transfer leaves its scale-up domain. */
static double latency_ns(const Cluster *cluster, const Transfer *transfer)
{
    gboolean is_outside = transfer->from >= 0 && transfer->to >= 0 &&
                          cluster_domain(cluster, transfer->from) != cluster_domain(cluster, transfer->to);
    return is_outside ? (double)cluster->device->scale_out_latency_ns : 0.0;
}

static char *end_name(int64_t end)
{
    return end >= 0 ? g_strdup_printf("%" G_GINT64_FORMAT, end) : g_strdup_printf("host%" G_GINT64_FORMAT, -1 - end);
}

/* "flow" transfers met others on their links; "closed_form" ones did not. */
static const char *level_name(const Transfer *transfer)
{
    return transfer->is_shared ? "flow" : "closed_form";
}

static const char *id_of(const Net *net, size_t row)
{
    return net->columns[COLUMN_ID] >= 0 ? csv_table_cell(net->table, row, (size_t)net->columns[COLUMN_ID]) : "";
}

static gboolean print_csv(const Net *net, const Topology *topology, GError **error)
{
    g_autoptr(Table) table = table_new();
    table_add_column(table, "id", TABLE_TEXT, TABLE_PLAIN);
    table_add_column(table, "from_rank", TABLE_TEXT, TABLE_PLAIN);
    table_add_column(table, "to_rank", TABLE_TEXT, TABLE_PLAIN);
    table_add_column(table, "bytes", TABLE_NUMBER, TABLE_BYTES);
    table_add_column(table, "start_s", TABLE_NUMBER, TABLE_SECONDS);
    table_add_column(table, "finish_s", TABLE_NUMBER, TABLE_SECONDS);
    table_add_column(table, "mean_bytes_per_s", TABLE_NUMBER, TABLE_BYTES_PER_S);
    table_add_column(table, "level", TABLE_TEXT, TABLE_PLAIN);
    table_add_column(table, "narrowest_link", TABLE_TEXT, TABLE_PLAIN);
    g_autoptr(GString) out = g_string_new(NULL);
    csv_append_header(out, table);
    for (size_t row = 0; row < net->n; row++) {
        const Transfer *transfer = &net->transfers[row];
        g_autofree char *from = end_name(transfer->from);
        g_autofree char *to = end_name(transfer->to);
        g_autofree char *link = topology_link_name(topology, transfer->slowest);
        table_clear_rows(table);
        table_add_row(table);
        table_put_text(table, 0, id_of(net, row));
        table_put_text(table, 1, from);
        table_put_text(table, 2, to);
        table_put_number(table, 3, transfer->bytes);
        table_put_number(table, 4, transfer->start_ns * 1e-9);
        table_put_number(table, 5, transfer->end_ns * 1e-9);
        if (transfer->end_ns > transfer->start_ns) {
            table_put_number(table, 6, transfer->bytes / ((transfer->end_ns - transfer->start_ns) * 1e-9));
        }
        table_put_text(table, 7, level_name(transfer));
        table_put_text(table, 8, link);
        csv_append_row(out, table, 0);
    }
    return command_print(error, "%s", out->str);
}

static json_t *transfer_to_json(const Net *net, const Topology *topology, size_t row)
{
    const Transfer *transfer = &net->transfers[row];
    g_autofree char *from = end_name(transfer->from);
    g_autofree char *to = end_name(transfer->to);
    g_autofree char *link = topology_link_name(topology, transfer->slowest);
    return json_pack("{s:s, s:o, s:o, s:f, s:f, s:f, s:s, s:s}", "id", id_of(net, row), "from_rank",
                     transfer->from >= 0 ? json_integer(transfer->from) : json_string(from), "to_rank",
                     transfer->to >= 0 ? json_integer(transfer->to) : json_string(to), "bytes", transfer->bytes, "start_s",
                     transfer->start_ns * 1e-9, "finish_s", transfer->end_ns * 1e-9, "level", level_name(transfer),
                     "narrowest_link", link);
}

static gboolean print_json(const Net *net, const Topology *topology, const TransfersSummary *summary, GError **error)
{
    g_autofree char *busiest = summary->busiest_ns > 0.0 ? topology_link_name(topology, summary->busiest) : g_strdup("");
    json_t *rows = json_array();
    for (size_t row = 0; row < net->n; row++) {
        json_array_append_new(rows, transfer_to_json(net, topology, row));
    }
    g_autoptr(json_t) value =
        json_pack("{s:s, s:I, s:f, s:s, s:f, s:I, s:I, s:o}", "schema", "moesim.net/1", "ranks",
                  (json_int_t)topology->cluster->n_ranks, "finish_s", summary->last_end_ns * 1e-9, "busiest_link", busiest,
                  "busiest_link_s", summary->busiest_ns * 1e-9, "closed_form", (json_int_t)summary->n_closed, "flows",
                  (json_int_t)summary->n_flows, "transfers", rows);
    g_autofree char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    return command_print(error, "%s\n", text);
}

static gboolean run(const CommandCall *call, GError **error)
{
    const NetOptions *options = call->options;
    g_auto(Net) net = {0};
    if (!net_read(&net, call->words[0], error)) {
        return FALSE;
    }
    g_autoptr(Cluster) cluster = find_cluster(&net, options, error);
    if (cluster == NULL || !check_ends(&net, cluster, error)) {
        return FALSE;
    }
    Topology topology;
    TransfersSummary summary;
    size_t bad = 0;
    topology_init(&topology, cluster);
    if (!transfers_run(&topology, net.transfers, net.n, &summary, &bad, error)) {
        g_prefix_error(error, "%s:%" G_GSIZE_FORMAT ": ", csv_table_name(net.table), csv_table_line(net.table, bad));
        return FALSE;
    }
    for (size_t row = 0; options->latency && row < net.n; row++) {
        net.transfers[row].end_ns += latency_ns(cluster, &net.transfers[row]);
        summary.last_end_ns = MAX(summary.last_end_ns, net.transfers[row].end_ns);
    }
    return options->json ? print_json(&net, &topology, &summary, error) : print_csv(&net, &topology, error);
}

static const CommandOption options[] = {
    {"cluster", 0, G_OPTION_ARG_FILENAME, G_STRUCT_OFFSET(NetOptions, cluster),
     "Hardware preset or descriptor file (needed)", "NAME"},
    {"nodes", 0, G_OPTION_ARG_INT64, G_STRUCT_OFFSET(NetOptions, nodes), "Nodes; as many as the table needs without it",
     "N"},
    {"gpus-per-node", 0, G_OPTION_ARG_INT64, G_STRUCT_OFFSET(NetOptions, gpus_per_node), "GPUs of a node; the preset's without it",
     "N"},
    {"latency", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(NetOptions, latency),
     "Add the network's latency to transfers between domains", NULL},
    {"json", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(NetOptions, json), "Print as JSON, with the busiest link", NULL},
    {0},
};

extern const CommandClass command_net;
const CommandClass command_net = {
    .usage = "TRANSFERS.csv --cluster NAME",
    .description = "Each row of TRANSFERS.csv is a transfer: id, from_rank, to_rank, bytes, start_s (id and start_s may be\n"
                   "left out). A rank is a number, numbered node by node; host0 is the host memory of node 0. Prints the\n"
                   "table with the time at which each ends when all share their links at max-min fair rates, at the\n"
                   "descriptor's bandwidths; level says whether a transfer had its links for itself (closed_form) or\n"
                   "met others (flow).\n"
                   "  moesim net transfers.csv --cluster h200-sxm",
    .min_words = 1,
    .max_words = 1,
    .words = COMMAND_WORDS_FILES,
    .options = options,
    .options_size = sizeof(NetOptions),
    .init = init,
    .run = run,
};
