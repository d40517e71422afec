/*
 * moesim schema: the JSON Schemas of plans and sweeps, for editors and for programs that write them.
 */
#include <gio/gio.h>
#include <string.h>

#include "reports-schema.h"
#include "reports/cli/command.h"
#include "sim/base/error.h"

static gboolean run(const CommandCall *call, GError **error)
{
    const char *wanted = call->n_words > 0 ? call->words[0] : "plan";
    if (strcmp(wanted, "plan") != 0 && strcmp(wanted, "sweep") != 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "schema: '%s' is none of plan, sweep", wanted);
        return FALSE;
    }
    g_autofree char *path = g_strdup_printf("/moesim/schema/%s.schema.json", wanted);
    /* A static library's resource constructor is dropped by the linker; this reference keeps it. */
    g_autoptr(GBytes) bytes = g_resource_lookup_data(reports_schema_get_resource(), path, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    g_assert(bytes != NULL);
    return command_print(error, "%.*s", (int)g_bytes_get_size(bytes), (const char *)g_bytes_get_data(bytes, NULL));
}

const CommandClass command_schema = {
    .usage = "[plan | sweep]",
    .description = "The schema (draft 2020-12) names every field of a plan, or of a sweep file, its legal values and its\n"
                   "default.",
    .max_words = 1,
    .words = COMMAND_WORDS_NONE,
    .run = run,
};
