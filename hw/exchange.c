#include "hw/exchange.h"

#include <math.h>

#include "hw/presets/presets.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

/* A value with where it comes from; or_else when it is not there and not needed (negative: it is needed). */
static JsonObject *open_value(JsonObject *values, const char *key, gboolean needed)
{
    JsonObject *object = json_object_child(values, key);
    if (object == NULL) {
        if (needed) {
            json_object_fail(values, key, "is missing");
        }
        return NULL;
    }
    static const char *const words[] = {"high", "medium", "low"};
    (void)json_object_choice(object, "confidence", words, G_N_ELEMENTS(words), 1);
    if (json_object_string(object, "source", NULL) == NULL) {
        json_object_fail(object, "source", "is missing: every value says where it comes from");
    }
    return object;
}

static double read_fraction(JsonObject *values, const char *key, double or_else)
{
    JsonObject *object = open_value(values, key, or_else < 0.0);
    double value = json_object_number(object, "value", 0.01, 1.0, or_else);
    json_object_end(object);
    return value;
}

static ExchangeStack *stack_read(JsonObject *root)
{
    ExchangeStack *stack = g_new0(ExchangeStack, 1);
    stack->name = g_strdup(json_object_string(root, "name", ""));
    stack->title = g_strdup(json_object_string(root, "title", stack->name));
    stack->once_per_rank = json_object_bool(root, "once_per_rank", FALSE);
    JsonObject *values = json_object_child(root, "values");
    if (values == NULL) {
        json_object_fail(root, "values", "is missing");
        return stack;
    }
    stack->scale_up_frac = read_fraction(values, "scale_up_frac", -1.0);
    stack->scale_out_frac = read_fraction(values, "scale_out_frac", -1.0);
    stack->combine_frac = read_fraction(values, "combine_frac", 1.0);
    JsonObject *fixed = open_value(values, "fixed_ns", TRUE);
    stack->fixed_ns = json_object_time(fixed, "value", 0);
    json_object_end(fixed);
    json_object_end(values);
    return stack;
}

ExchangeStack *exchange_stack_load(const char *name, GError **error)
{
    g_autofree char *text = hw_stack_text(name);
    if (text == NULL) {
        g_auto(GStrv) names = hw_stack_names();
        const char *nearest = error_nearest_name(name, (const char *const *)names, g_strv_length(names));
        g_autofree char *list = g_strjoinv(", ", names);
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "no exchange stack \"%s\"; %s%s", name,
                    nearest != NULL ? "did you mean " : "there are ", nearest != NULL ? nearest : list);
        return NULL;
    }
    g_autoptr(JsonDoc) doc = json_doc_parse(text, name, FALSE, error);
    JsonObject *root = doc != NULL ? json_doc_open(doc, error) : NULL;
    if (root == NULL) {
        return NULL;
    }
    g_autoptr(ExchangeStack) stack = stack_read(root);
    return json_object_close(root, FALSE, error) ? g_steal_pointer(&stack) : NULL;
}

void exchange_stack_free(ExchangeStack *stack)
{
    if (stack == NULL) {
        return;
    }
    g_free(stack->name);
    g_free(stack->title);
    g_free(stack);
}

char **exchange_stack_names(void)
{
    return hw_stack_names();
}

double exchange_seconds(const Cluster *cluster, const ExchangeStack *stack, const ExchangeBytes *bytes, gboolean is_combine)
{
    double rate = is_combine ? stack->combine_frac : 1.0;
    double inside = bytes->inside / (cluster->scale_up_bytes_per_s * stack->scale_up_frac * rate);
    double outside = bytes->outside / (cluster->scale_out_bytes_per_s * stack->scale_out_frac * rate);
    return (double)stack->fixed_ns * 1e-9 + fmax(inside, outside);
}
