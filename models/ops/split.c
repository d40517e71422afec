#include "models/ops/split.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
void split_add(Graph *graph, const char *name, int x, const SplitAttr *attr, int *ret_parts)
{
    static const char *const part_names[SPLIT_PARTS_MAX] = {"0", "1", "2", "3"};
    const GraphTensor in = *graph_tensor(graph, x);
    int64_t group = 0;
    g_assert(attr->n_parts > 0 && attr->n_parts <= SPLIT_PARTS_MAX);
    for (int i = 0; i < attr->n_parts; i++) {
        int64_t width = attr->groups * attr->widths[i];
        group += attr->widths[i];
        ret_parts[i] = graph_add_tensor(graph, op_name(name, part_names[i]).text, in.rows, width, in.dtype);
    }
    g_assert(attr->groups * group == in.width);
    Op *op = op_add(graph, OP_split, name, attr, sizeof *attr);
    op_input(op, x);
    for (int i = 0; i < attr->n_parts; i++) {
        op_output(graph, op, ret_parts[i]);
    }
}

extern const OpClass op_split;
const OpClass op_split = {.id = "split", .title = "split", .views_input = TRUE};
#endif
