/* Declarations that both parts of the fork server share: the parent's (forkserver.c) and the child's (child.c).
 *
 * Wire format (little-endian, over one pipe per direction, one call after the other):
 *   request:  struct request, code, stdin;   response: struct response, stdout, stderr, files.
 * A child reads struct request and the code from a socket, over which a session gets its further cells, and a call
 * sends the files that it returns (program.py). The stdin of a child is a pipe, which it can open as /dev/stdin.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Verbs of a request; 1 to 3 belong to a session. */
enum { CALL = 0, OPEN = 1, CELL = 2, CLOSE = 3, CODE_JUDGE = 4, SCRIPT = 5 };
enum { CHILD_SOCKET = 63 }; /* the highest descriptor that a call may have */

static inline int is_of_session(uint32_t verb) { return verb == OPEN || verb == CELL || verb == CLOSE; }

struct request {
    uint64_t id;
    uint32_t code_bytes, stdin_bytes, wall_ms, memory_mib, output_bytes, processes, verb, session, file_bytes, unused;
};

struct response {
    uint64_t id;
    int32_t wait_status;
    uint32_t reason, run_us, stdout_bytes, stderr_bytes;
    uint32_t lives, file_bytes, unused; /* lives: whether the session continues */
};

/* The used part of Python's stable ABI, declared here so that no Python headers must be installed. */
typedef struct Object Object;
struct method {
    const char *name;
    Object *(*call)(Object *self, Object *arguments);
    int flags;
    const char *doc;
};
struct module {
    intptr_t references;
    void *type, *init;
    intptr_t index;
    void *copy;
    const char *name, *doc;
    intptr_t size;
    struct method *methods;
    void *slots, *traverse, *clear, *free;
};
enum { METH_VARARGS = 1, STABLE_ABI = 3 };
extern int PyArg_ParseTuple(Object *arguments, const char *format, ...);
extern Object *PyBytes_FromStringAndSize(const char *from, intptr_t bytes);
extern char *PyBytes_AsString(Object *bytes);
extern Object *Py_BuildValue(const char *format, ...);
extern Object *PyModule_Create2(struct module *definition, int abi);
extern void PyOS_AfterFork_Child(void);

/* forkserver.c */
void die(const char *what);
int read_all(int fd, void *into, size_t bytes);

/* child.c */
rlim_t mapped(void);
void seal(int first_user, int users);
void confine(int namespaces);
Object *receive_call(rlim_t zygote_bytes, int others);
Object *next_cell(Object *self, Object *arguments);
Object *flush(Object *self, Object *arguments);
