/*
 * Numbers as text, for rows by the thousand a second.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Appends the number as "%.12g" writes it, byte for byte. */
void number_append(GString *out, double value);

/* Appends the whole number. */
void number_append_integer(GString *out, int64_t value);
