#include "hw/presets/presets.h"

#include <gio/gio.h>
#include <string.h>

#include "hw-presets.h"

#define PRESET_PREFIX "/moesim/hw/"
#define STACK_PREFIX "/moesim/stacks/"

/* A static library's resource constructor is dropped by the linker; this reference keeps it. */
static void register_presets(void)
{
    (void)hw_presets_get_resource();
}

static char *text_of(const char *prefix, const char *name)
{
    register_presets();
    g_autofree char *path = g_strconcat(prefix, name, ".json", NULL);
    g_autoptr(GBytes) bytes = g_resources_lookup_data(path, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    if (bytes == NULL) {
        return NULL;
    }
    gsize length;
    const char *data = g_bytes_get_data(bytes, &length);
    return g_strndup(data, length);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char **names_in(const char *prefix)
{
    register_presets();
    char **names = g_resources_enumerate_children(prefix, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    for (char **name = names; *name != NULL; name++) {
        (*name)[strlen(*name) - strlen(".json")] = '\0';
    }
    qsort(names, g_strv_length(names), sizeof *names, compare_names);
    return names;
}

char *hw_preset_text(const char *name)
{
    return text_of(PRESET_PREFIX, name);
}

char **hw_preset_names(void)
{
    return names_in(PRESET_PREFIX);
}

char *hw_stack_text(const char *name)
{
    return text_of(STACK_PREFIX, name);
}

char **hw_stack_names(void)
{
    return names_in(STACK_PREFIX);
}
