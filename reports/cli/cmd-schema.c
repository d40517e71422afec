/*
 * moesim schema: the JSON Schema of plans, for editors and for programs that write plans.
 */
#include <gio/gio.h>

#include "reports-schema.h"
#include "reports/cli/command.h"

static gboolean run(const CommandCall *call, GError **error)
{
    (void)call;
    /* A static library's resource constructor is dropped by the linker; this reference keeps it. */
    g_autoptr(GBytes) bytes = g_resource_lookup_data(reports_schema_get_resource(), "/moesim/schema/plan.schema.json",
                                                     G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    g_assert(bytes != NULL);
    return command_print(error, "%.*s", (int)g_bytes_get_size(bytes), (const char *)g_bytes_get_data(bytes, NULL));
}

const CommandClass command_schema = {
    .usage = "",
    .description = "The schema (draft 2020-12) names every field of a plan, its legal values and its default.",
    .max_words = 0,
    .words = COMMAND_WORDS_NONE,
    .run = run,
};
