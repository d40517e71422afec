#include "sim/base/work.h"

#include <string.h>

static const struct {
    const char *name;
    WorkGroup group;
} laws[N_WORK_LAWS] = {
#define WORK(id, name, group) [WORK_##id] = {name, WORK_GROUP_##group},
#include "sim/base/work.def"
#undef WORK
};

const char *work_law_name(WorkLaw law)
{
    g_assert(law < N_WORK_LAWS);
    return laws[law].name;
}

WorkGroup work_law_group(WorkLaw law)
{
    g_assert(law < N_WORK_LAWS);
    return laws[law].group;
}

gboolean work_law_from_name(const char *name, WorkLaw *ret_law)
{
    for (int i = 0; i < N_WORK_LAWS; i++) {
        if (strcmp(laws[i].name, name) == 0) {
            *ret_law = (WorkLaw)i;
            return TRUE;
        }
    }
    return FALSE;
}
