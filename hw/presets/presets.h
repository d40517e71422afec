/*
 * Presets: the descriptors that are compiled into the program.
 */
#pragma once

/* Text of a preset, or NULL; caller frees. */
char *hw_preset_text(const char *name);

/* Their names, sorted, NULL-terminated; free with g_strfreev. */
char **hw_preset_names(void);

/* The same of stacks of exchange kernels (hw/exchange.h). */
char *hw_stack_text(const char *name);
char **hw_stack_names(void);
