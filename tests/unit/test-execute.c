/*
 * Execution: gradients add up over consumers, unused parts have none, values and gradients can be dropped, errors name
 * the operator; a trainer refuses weights that do not fit.
 */
#include "tests/check.h"

#include "models/execute.h"
#include "models/ops/cross-entropy.h"
#include "models/ops/linear.h"
#include "models/ops/residual-add.h"
#include "models/trainer.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

enum { N = 3, H = 4 };

/* y = x A + 2 (x A) + x with a linear layer B beside it that nothing reads. */
static Graph *shared_graph(int *ret_x, int *ret_y)
{
    Graph *graph = graph_new(DTYPE_FP64);
    *ret_x = graph_add_input(graph, "x", ROWS_TOKENS, H, DTYPE_FP64, TRUE);
    int a = linear_add(graph, "a", *ret_x, H, FALSE);
    linear_add(graph, "b", *ret_x, H, FALSE);
    int s = residual_add(graph, "sum", a, a, 2);
    *ret_y = residual_add(graph, "y", s, *ret_x, 1);
    graph_add_output(graph, *ret_y);
    graph_finish(graph);
    return graph;
}

static Tensor *filled(int64_t rows, int64_t width, double value)
{
    Tensor *tensor = tensor_new_2d(TENSOR_F64, rows, width);
    for (int64_t i = 0; i < rows * width; i++) {
        tensor_set(tensor, i, value);
    }
    return tensor;
}

static void test_shared(void **state)
{
    (void)state;
    int x, y;
    g_autoptr(Graph) graph = shared_graph(&x, &y);
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = N}, .seq_len = N};
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    g_autoptr(Tensor) in = filled(N, H, 1), weight = filled(H, H, 0.5), seed = filled(N, H, 1);
    execute_put(run, x, in);
    execute_put_param(run, 0, weight);
    execute_put_param(run, 1, weight);
    assert_true(execute_forward(run, NULL));
    check_close(tensor_get(execute_value(run, y), 0), 3 * 0.5 * H + 1, 1e-14);
    execute_put_grad(run, y, seed);
    assert_true(execute_backward(run, NULL));
    check_close(tensor_get(execute_grad(run, x), 0), 3 * 0.5 * H + 1, 1e-14); /* through the layer and past it */
    check_close(tensor_get(execute_param_grad(run, 0), 0), 3.0 * N, 1e-14);
    assert_null(execute_param_grad(run, 1)); /* nothing reads it */
    execute_drop_grad(run, x);
    execute_drop_value(run, y);
    assert_null(execute_grad(run, x));
    assert_null(execute_value(run, y));
}

static void test_error(void **state)
{
    (void)state;
    const CrossEntropyAttr attr = {.ignore_index = CROSS_ENTROPY_IGNORE};
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = N}, .seq_len = N};
    int logits = graph_add_input(graph, "logits", ROWS_TOKENS, H, DTYPE_FP64, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    graph_add_output(graph, cross_entropy_add(graph, "the_loss", logits, labels, &attr));
    graph_finish(graph);
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    g_autoptr(Tensor) in = filled(N, H, 1), wrong = tensor_new_2d(TENSOR_I64, N, 1);
    GError *error = NULL;
    tensor_set(wrong, 2, H);
    execute_put(run, logits, in);
    execute_put(run, labels, wrong);
    assert_false(execute_forward(run, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "the_loss: label of token 2");
}

static Model *tiny_model(void)
{
    static const char text[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 8, \"intermediate_size\": 12, \"num_hidden_layers\": 1, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 16, \"rms_norm_eps\": 1e-5, "
        "\"tie_word_embeddings\": true}";
    g_autoptr(JsonDoc) doc = json_doc_parse(text, "tiny", FALSE, NULL);
    return model_from_json(json_doc_root(doc), "tiny", NULL, NULL);
}

/* Weights of a trainer, each to the sine of its place; skip leaves one tensor out. */
static Safetensors *weights_for(const Trainer *trainer, int skip, gboolean short_one)
{
    g_autoptr(SafetensorsWriter) writer = safetensors_writer_new();
    for (int i = 0; i < trainer_n_tensors(trainer); i++) {
        g_autofree char *name = trainer_tensor_name(trainer, i);
        g_autoptr(Tensor) value = trainer_tensor_value(trainer, i);
        g_autoptr(Tensor) one = tensor_new_2d(TENSOR_F64, 1, 1);
        for (int64_t k = 0; k < tensor_numel(value); k++) {
            tensor_set(value, k, 0.3 * sin(1.7 * (double)(k + 31 * i)));
        }
        if (i != skip || short_one) {
            safetensors_writer_add(writer, name, i == skip ? one : value);
        }
    }
    g_autoptr(GBytes) bytes = safetensors_writer_bytes(writer);
    return safetensors_parse(g_bytes_get_data(bytes, NULL), g_bytes_get_size(bytes), "weights", NULL);
}

/* A tied head trains the embedding's matrix: the loss falls, there is no second matrix; bad weights are refused. */
static void test_trainer(void **state)
{
    (void)state;
    GError *error = NULL;
    g_autoptr(Model) model = tiny_model();
    const BlockOptions options = {.compute = DTYPE_FP64};
    const TrainerSettings settings = {
        .optim = OPTIM_adamw, .lr = 0.02, .warmup = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1};
    g_autoptr(Trainer) trainer = trainer_new(model, &options, &settings, TENSOR_F64);
    g_autoptr(Safetensors) missing = weights_for(trainer, 2, FALSE), wrong = weights_for(trainer, 2, TRUE),
                           good = weights_for(trainer, -1, FALSE);
    assert_false(trainer_load(trainer, TRAINER_BASE, missing, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "no tensor");
    assert_false(trainer_load(trainer, TRAINER_BASE, wrong, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "1 elements in the file");
    assert_true(trainer_load(trainer, TRAINER_BASE, good, &error));
    const int64_t tokens[] = {1, 5, 2, 9, 3, 7, 7, 0},
                  labels[] = {5, 2, 9, CROSS_ENTROPY_IGNORE, 7, 7, 0, CROSS_ENTROPY_IGNORE};
    const TrainerBatch batch = {2, 4, tokens, labels};
    TrainerStep first, last = {0};
    assert_true(trainer_step(trainer, &batch, &first, &error));
    for (int i = 0; i < 60; i++) {
        assert_true(trainer_step(trainer, &batch, &last, &error));
    }
    assert_true(last.loss < 0.3 * first.loss);
    for (int i = 0; i < trainer_n_tensors(trainer); i++) {
        g_autofree char *name = trainer_tensor_name(trainer, i);
        assert_null(strstr(name, "lm_head"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared), cmocka_unit_test(test_error),
                                       cmocka_unit_test(test_trainer)};
    return cmocka_run_group_tests_name("execute", tests, NULL, NULL);
}
