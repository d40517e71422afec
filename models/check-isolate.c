#include "models/check-isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* What travels back, followed by the text of the detail. */
typedef struct Message {
    gboolean passed;
    double worst;
} Message;

static gboolean write_all(int fd, const void *data, size_t n)
{
    const char *at = data;
    while (n > 0) {
        ssize_t written = write(fd, at, n);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return FALSE;
        }
        at += written;
        n -= (size_t)written;
    }
    return TRUE;
}

/* Assertions of the child are expected: no words of its own, no core file. */
static void child_be_quiet(void)
{
    const struct rlimit none = {0, 0};
    int null_fd = open("/dev/null", O_WRONLY);
    setrlimit(RLIMIT_CORE, &none);
    if (null_fd >= 0) {
        dup2(null_fd, STDERR_FILENO);
        dup2(null_fd, STDOUT_FILENO);
    }
}

static void child_main(IsolatedCheck run, const void *data, int fd)
{
    CheckOutcome outcome = {.passed = TRUE};
    child_be_quiet();
    run(data, &outcome);
    Message message = {outcome.passed, outcome.worst};
    const char *detail = outcome.detail != NULL ? outcome.detail : "";
    gboolean sent = write_all(fd, &message, sizeof message) && write_all(fd, detail, strlen(detail));
    _exit(sent ? 0 : 1);
}

static GByteArray *read_all(int fd)
{
    GByteArray *bytes = g_byte_array_new();
    guint8 part[512];
    ssize_t n;
    while ((n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR)) {
        if (n > 0) {
            g_byte_array_append(bytes, part, (guint)n);
        }
    }
    return bytes;
}

static void parent_main(pid_t child, int fd, CheckOutcome *outcome)
{
    int status = 0;
    Message message;
    g_autoptr(GByteArray) bytes = read_all(fd);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    gboolean ended = WIFEXITED(status) && WEXITSTATUS(status) == 0 && bytes->len >= sizeof message;
    if (!ended) {
        outcome->passed = FALSE;
        outcome->worst = (double)INFINITY;
        outcome->detail =
            g_strdup("the file cannot be run: a tensor is missing, or shapes and attributes do not fit one another");
        return;
    }
    memcpy(&message, bytes->data, sizeof message);
    outcome->passed = message.passed;
    outcome->worst = message.worst;
    outcome->detail = g_strndup((const char *)bytes->data + sizeof message, bytes->len - sizeof message);
}

void check_isolated(IsolatedCheck run, const void *data, CheckOutcome *ret_outcome)
{
    int fds[2];
    if (pipe(fds) != 0) {
        run(data, ret_outcome);
        return;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(fds[0]);
        child_main(run, data, fds[1]);
    }
    close(fds[1]);
    if (child < 0) {
        run(data, ret_outcome);
    } else {
        parent_main(child, fds[0], ret_outcome);
    }
    close(fds[0]);
}
