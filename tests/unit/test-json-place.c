#include "tests/check.h"

#include "sim/base/json-place.h"

static const char text[] = "{\n"
                           "  \"a\": 1,\n"
                           "  \"s\\\"{\": \"}],\\\\\",\n"
                           "  \"list\": [ {\"x\": NaN}, [[]], {\"y\" : -Infinity} ], \"\xc3\xa9\": {\"b\": true}\n"
                           "}\n";

typedef struct Case {
    const char *name;
    JsonStep steps[3];
    size_t n_steps;
    gboolean want_key;
    int line, column;
} Case;

static const Case cases[] = {
    {"root", {{0}}, 0, FALSE, 1, 1},
    {"member", {{"a", 0}}, 1, FALSE, 2, 8},
    {"key of a member", {{"a", 0}}, 1, TRUE, 2, 3},
    {"behind an escaped key and string", {{"list", 0}}, 1, FALSE, 4, 11},
    {"first element", {{"list", 0}, {NULL, 0}, {"x", 0}}, 3, FALSE, 4, 19},
    {"third element", {{"list", 0}, {NULL, 2}, {"y", 0}}, 3, FALSE, 4, 38},
    {"third element's key", {{"list", 0}, {NULL, 2}, {"y", 0}}, 3, TRUE, 4, 32},
    {"columns count characters", {{"\xc3\xa9", 0}, {"b", 0}}, 2, FALSE, 4, 63},
    {"no such member", {{"list", 0}, {"q", 0}}, 2, FALSE, 4, 11},
    {"no such element", {{"list", 0}, {NULL, 3}}, 2, FALSE, 4, 11},
    {"no such key", {{"zz", 0}}, 1, TRUE, 1, 1},
};

static void test_place(void **state)
{
    const Case *c = *state;
    JsonPlace place = json_place_find(text, c->steps, c->n_steps, c->want_key);
    check_int(place.line, c->line);
    check_int(place.column, c->column);
}

int main(void)
{
    return check_run_cases("json-place", test_place, cases, G_N_ELEMENTS(cases), sizeof cases[0]);
}
