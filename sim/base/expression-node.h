/*
 * What a parsed expression is made of: a vector of nodes, children before their parents. Shared by the parser
 * (expression.c) and the evaluation (expression-evaluate.c), by nobody else.
 */
#pragma once

#include "sim/base/expression.h"

typedef enum NodeKind { NODE_VALUE, NODE_NAME, NODE_UNARY, NODE_BINARY, NODE_CALL, NODE_IN } NodeKind;

typedef enum Operator {
    OPERATOR_NONE,
    OPERATOR_NEGATE,
    OPERATOR_NOT,
    OPERATOR_MULTIPLY,
    OPERATOR_DIVIDE,
    OPERATOR_DIVIDE_DOWN,
    OPERATOR_REST,
    OPERATOR_ADD,
    OPERATOR_SUBTRACT,
    OPERATOR_EQUAL,
    OPERATOR_UNEQUAL,
    OPERATOR_LESS,
    OPERATOR_LESS_EQUAL,
    OPERATOR_MORE,
    OPERATOR_MORE_EQUAL,
    OPERATOR_AND,
    OPERATOR_OR,
} Operator;

typedef enum Function { FUNCTION_MIN, FUNCTION_MAX, FUNCTION_ABS, FUNCTION_FLOOR, FUNCTION_CEIL, FUNCTION_LOG2 } Function;

typedef struct Node {
    NodeKind kind;
    Operator op;
    Function function;
    ExpressionValue value; /* text owned by the expression */
    guint name_idx;
    guint column;
    guint first, n; /* operands: n entries of `children` from `first` */
} Node;

struct Expression {
    char *text;
    GArray *nodes;    /* Node */
    GArray *children; /* guint: node indices */
    GPtrArray *names; /* char * */
    GPtrArray *texts; /* char *: of literals */
    guint root;
};
