#include "sim/base/intern.h"

#include <string.h>

enum { CHUNK_BYTES = 1 << 18, SLOTS_MIN = 256 };

typedef struct Entry {
    const void *data;
    size_t n_bytes;
    uint64_t hash;
} Entry;

struct Intern {
    GArray *entries;  /* Entry, by number */
    guint32 *slots;   /* 1 + number, 0 = free; n_slots is a power of two, at most half of them are taken */
    size_t n_slots;
    GPtrArray *chunks;
    size_t chunk_used, chunk_bytes; /* of the last chunk */
    size_t size_bytes;
};

Intern *intern_new(void)
{
    Intern *intern = g_new0(Intern, 1);
    intern->entries = g_array_new(FALSE, FALSE, sizeof(Entry));
    intern->chunks = g_ptr_array_new_with_free_func(g_free);
    intern_clear(intern);
    return intern;
}

void intern_free(Intern *intern)
{
    if (intern != NULL) {
        g_array_unref(intern->entries);
        g_ptr_array_unref(intern->chunks);
        g_free(intern->slots);
        g_free(intern);
    }
}

void intern_clear(Intern *intern)
{
    g_array_set_size(intern->entries, 0);
    g_ptr_array_set_size(intern->chunks, 0);
    g_free(intern->slots);
    intern->n_slots = SLOTS_MIN;
    intern->slots = g_new0(guint32, intern->n_slots);
    intern->chunk_used = intern->chunk_bytes = 0;
    intern->size_bytes = intern->n_slots * sizeof(guint32);
}

/* Two lanes of multiply and shift over the words; equal hashes are compared, so quality is only a matter of speed. */
static uint64_t hash_bytes(const void *data, size_t n_bytes)
{
    const char *at = data;
    uint64_t a = n_bytes * 0x9e3779b97f4a7c15u, b = 0xc2b2ae3d27d4eb4fu, word;
    size_t i = 0;
    for (; i + 16 <= n_bytes; i += 16) {
        memcpy(&word, at + i, 8);
        a = (a ^ word) * 0x9e3779b97f4a7c15u;
        a ^= a >> 32;
        memcpy(&word, at + i + 8, 8);
        b = (b ^ word) * 0xff51afd7ed558ccdu;
        b ^= b >> 32;
    }
    if (i < n_bytes) {
        memcpy(&word, at + i, 8);
        a = (a ^ word) * 0x9e3779b97f4a7c15u;
    }
    a = (a ^ (b << 1 | b >> 63)) * 0xff51afd7ed558ccdu;
    return a ^ a >> 29;
}

static void grow(Intern *intern)
{
    intern->size_bytes += intern->n_slots * sizeof(guint32);
    intern->n_slots *= 2;
    g_free(intern->slots);
    intern->slots = g_new0(guint32, intern->n_slots);
    for (guint32 id = 0; id < intern->entries->len; id++) {
        size_t slot = g_array_index(intern->entries, Entry, id).hash & (intern->n_slots - 1);
        while (intern->slots[slot] != 0) {
            slot = (slot + 1) & (intern->n_slots - 1);
        }
        intern->slots[slot] = id + 1;
    }
}

static const void *copy(Intern *intern, const void *data, size_t n_bytes)
{
    if (intern->chunk_bytes - intern->chunk_used < n_bytes) {
        intern->chunk_bytes = MAX((size_t)CHUNK_BYTES, n_bytes);
        intern->chunk_used = 0;
        intern->size_bytes += intern->chunk_bytes;
        g_ptr_array_add(intern->chunks, g_malloc(intern->chunk_bytes));
    }
    char *place = (char *)g_ptr_array_index(intern->chunks, intern->chunks->len - 1) + intern->chunk_used;
    memcpy(place, data, n_bytes);
    intern->chunk_used += n_bytes;
    return place;
}

guint32 intern_bytes(Intern *intern, const void *data, size_t n_bytes, gboolean *ret_is_new)
{
    g_assert(n_bytes % 8 == 0);
    uint64_t hash = hash_bytes(data, n_bytes);
    size_t slot = hash & (intern->n_slots - 1);
    for (; intern->slots[slot] != 0; slot = (slot + 1) & (intern->n_slots - 1)) {
        const Entry *entry = &g_array_index(intern->entries, Entry, intern->slots[slot] - 1);
        if (entry->hash == hash && entry->n_bytes == n_bytes && memcmp(entry->data, data, n_bytes) == 0) {
            *ret_is_new = FALSE;
            return intern->slots[slot] - 1;
        }
    }
    Entry entry = {n_bytes > 0 ? copy(intern, data, n_bytes) : NULL, n_bytes, hash};
    g_array_append_val(intern->entries, entry);
    intern->size_bytes += sizeof entry;
    intern->slots[slot] = intern->entries->len;
    if (2 * intern->entries->len > intern->n_slots) {
        grow(intern);
    }
    *ret_is_new = TRUE;
    return intern->entries->len - 1;
}

const void *intern_get(const Intern *intern, guint32 id, size_t *ret_n_bytes)
{
    g_assert(id < intern->entries->len);
    const Entry *entry = &g_array_index(intern->entries, Entry, id);
    *ret_n_bytes = entry->n_bytes;
    return entry->data;
}

guint32 intern_n(const Intern *intern)
{
    return intern->entries->len;
}

size_t intern_size_bytes(const Intern *intern)
{
    return intern->size_bytes;
}
