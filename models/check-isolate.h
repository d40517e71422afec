/*
 * Isolation: runs a check on a file from outside in a process of its own.
 *
 * Adapters build graphs from what a file says, and graphs assert what programmers must get right; a file that lies
 * about its shapes would end the program. In a child it ends the check alone.
 */
#pragma once

#include "models/check-suite.h"

/* Fills the outcome; data is handed on. */
typedef void (*IsolatedCheck)(const void *data, CheckOutcome *outcome);

/* Runs the check in a child process and brings its outcome back; a child that dies is a failed check. */
void check_isolated(IsolatedCheck run, const void *data, CheckOutcome *ret_outcome);
