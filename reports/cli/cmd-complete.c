/*
 * moesim complete LINE POINT: what can stand at POINT of the half-typed LINE, one candidate a line.
 *
 * The shell's completion file knows nothing: commands, options and preset names come from the tables here. No
 * candidate means that a file is wanted; the shell then completes file names itself.
 */
#include <string.h>

#include "hw/device.h"
#include "models/model.h"
#include "reports/cli/command.h"
#include "sim/base/error.h"

static gboolean offer(const char *candidate, const char *prefix, GError **error)
{
    return !g_str_has_prefix(candidate, prefix) || command_print(error, "%s\n", candidate);
}

static gboolean offer_commands(const char *prefix, GError **error)
{
    size_t n;
    const Command *commands = command_table(&n);
    for (size_t i = 0; i < n; i++) {
        if (!offer(commands[i].name, prefix, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean offer_options(const CommandClass *cls, const char *prefix, GError **error)
{
    for (const CommandOption *option = cls->options; option != NULL && option->name != NULL; option++) {
        g_autofree char *text = g_strdup_printf("--%s", option->name);
        if (!offer(text, prefix, error)) {
            return FALSE;
        }
    }
    return offer("--help", prefix, error);
}

/* The option that takes the word after `word` as its value. */
static gboolean awaits_value(const CommandClass *cls, const char *word)
{
    for (const CommandOption *option = cls->options; option != NULL && option->name != NULL; option++) {
        gboolean named = g_str_has_prefix(word, "--") ? strcmp(word + 2, option->name) == 0
                                                      : word[0] == '-' && word[1] == option->letter && word[2] == '\0';
        if (named && option->kind != G_OPTION_ARG_NONE) {
            return TRUE;
        }
    }
    return FALSE;
}

/* Takes the names. */
static gboolean offer_names(char **names, const char *prefix, GError **error)
{
    g_auto(GStrv) owned = names;
    for (char **name = owned; *name != NULL; name++) {
        if (!offer(*name, prefix, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean offer_words(CommandWords words, const char *prefix, GError **error)
{
    switch (words) {
    case COMMAND_WORDS_MODELS:
        return offer_names(model_preset_names(), prefix, error);
    case COMMAND_WORDS_DEVICES:
        return offer_names(device_preset_names(), prefix, error);
    case COMMAND_WORDS_NONE:
    case COMMAND_WORDS_FILES:
        break;
    }
    return TRUE;
}

static gboolean complete(const CommandCall *call, GError **error)
{
    guint64 point;
    if (!g_ascii_string_to_unsigned(call->words[1], 10, 0, G_MAXUINT32, &point, NULL)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "complete: POINT: '%s' is no position in a line",
                    call->words[1]);
        return FALSE;
    }
    g_autofree char *line = g_strndup(call->words[0], point);
    g_auto(GStrv) words = g_strsplit_set(line, " \t", -1);
    g_autoptr(GPtrArray) typed = g_ptr_array_new(); /* words before the one being typed */
    size_t n = g_strv_length(words);
    const char *prefix = n > 0 ? words[n - 1] : "";
    for (size_t i = 0; i + 1 < n; i++) {
        if (words[i][0] != '\0') {
            g_ptr_array_add(typed, words[i]);
        }
    }
    if (typed->len <= 1) {
        return prefix[0] == '-' ? offer("--help", prefix, error) && offer("--version", prefix, error)
                                : offer_commands(prefix, error);
    }
    const Command *command = command_find(g_ptr_array_index(typed, 1));
    if (command == NULL) {
        command = command_find("run");
    }
    if (command == NULL || awaits_value(command->cls, g_ptr_array_index(typed, typed->len - 1))) {
        return TRUE;
    }
    return prefix[0] == '-' ? offer_options(command->cls, prefix, error)
                            : offer_words(command->cls->words, prefix, error);
}

const CommandClass command_complete = {
    .usage = "LINE POINT",
    .description = "LINE is the command line as typed so far, POINT the place of the cursor in it.",
    .min_words = 2,
    .max_words = 2,
    .run = complete,
};
