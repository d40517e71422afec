/*
 * Activations of MLPs and experts, gated (two inputs g and u) and plain (one input g).
 */
#pragma once

#include "models/graph.h"

typedef enum ActivationForm {
    ACTIVATION_FORM_SWIGLU, /* silu(g) u */
    ACTIVATION_FORM_SITU,   /* beta tanh(g / beta) sigmoid(g) linear_beta tanh(u / linear_beta) */
    ACTIVATION_FORM_GPTOSS, /* (clamp(u, -7, 7) + 1) g' sigmoid(1.702 g') with g' = min(g, 7) */
    ACTIVATION_FORM_RELU2,  /* max(0, g)^2 */
    ACTIVATION_FORM_SILU,   /* g sigmoid(g) */
    ACTIVATION_FORM_GELU,   /* by erf */
    ACTIVATION_FORM_GELU_TANH,
    N_ACTIVATION_FORMS
} ActivationForm;

typedef struct ActivationAttr {
    ActivationForm form;
    double beta;        /* SiTU */
    double linear_beta; /* SiTU; 0 = u unchanged */
} ActivationAttr;

/* Whether the form takes u. */
gboolean activation_is_gated(ActivationForm form);

/* Adds the activation of g (and u, of the same shape; -1 for plain forms). Returns y, of the shape of g. */
int activation_add(Graph *graph, const char *name, const ActivationAttr *attr, int g, int u);
