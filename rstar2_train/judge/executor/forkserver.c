/* The trusted parent of every call, inside the sandbox: forks a process per call, feeds it, limits it, reports its end.
 *
 * `program.py` imports and warms up what snippets need, and then calls serve(), which returns only in a child, with the
 * code of one snippet. It is written in C, and keeps its state in a shared mapping, because each page of the Python
 * heap that is written after a fork costs gVisor a copy of up to 2 MB. For the same reason it is a Python module:
 * ctypes needs half a megabyte more.
 *
 * A child is forked before its call arrives, and copies the pages of the heap until then (`prefault`). A lane without a
 * call for IDLE_MS has no such child: it would hold a copy of the heap. child.c is the child's part, forkserver.h defines
 * the wire format. The status of a call comes from wait() and the clock, never from its output.
 *
 * A session is a child that stays alive: it runs cells one after the other and reports their exit statuses over its
 * socket (a false report harms only itself). It is killed when a cell exceeds its time or output limit.
 */
#include "forkserver.h"

#include <dlfcn.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

enum { EXITED = 0, TIMEOUT = 1, OUTPUT_LIMIT = 2, SETUP_FAILED = 3, NO_SESSION = 4 };
enum { MAX_SESSIONS = 16, MAX_REGIONS = 512, IDLE_MS = 10000, TICK_MS = 2500 };
enum { CODE_JUDGE_GRACE_US = 500000 }; /* a program of code-judge prints a last line after its time limit (program.py) */
enum { USERS = MAX_SESSIONS + 2 }; /* one per session, one for the running call and one for the next one */
enum { COPY_BYTES = 2 << 20 }; /* gVisor copies a private mapping in aligned pieces of this size */
enum { NAMESPACES = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS };

struct child {
    pid_t pid; /* 0: no child */
    int socket, in, out, err, user; /* in: stdin; -1: closed */
};

/* Everything that the parent writes while a child lives. The child unmaps it before it receives a call. */
struct state {
    struct child next, sessions[MAX_SESSIONS];
    struct request request;
    struct response response;
    struct pollfd polls[5];
    sigset_t mask;
    size_t sent, written, stored[3]; /* sent: of the request and its code; written: of its stdin */
    int64_t waiting_since; /* time of the end of the call before */
    int timer_runs;
    volatile int confined; /* set by the child when it is confined, before it unmaps this */
    char scratch[65536];
    char *payload, *outputs[3]; /* stdout, stderr, files */
};

static struct state *state;
static size_t payload_limit, output_limit;
static struct { char *start, *end; } regions[MAX_REGIONS]; /* private writable memory of the zygote */
static int region_count;
static int first_user; /* first of USERS user ids of this lane's children; -1: they have that of the zygote */
static rlim_t zygote_bytes; /* address space of the zygote, and of each child at its start */

void die(const char *what) {
    dprintf(2, "executor: %s: %s\n", what, strerror(errno));
    _exit(70);
}

static void *shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    return memory;
}

static int64_t microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Returns 1 if all bytes were read, 0 at end of file before the first byte. Exits on an error or a truncated read. */
int read_all(int fd, void *into, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, (char *)into + done, bytes - done);
        if (got < 0 && errno == EINTR) continue;
        if (got == 0 && done == 0) return 0;
        if (got <= 0) die("request");
        done += (size_t)got;
    }
    return 1;
}

static void write_all(int fd, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t written = write(fd, (const char *)from + done, bytes - done);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) die("response");
        done += (size_t)written;
    }
}

/* Returns the address of glibc's cached thread id. After a raw clone() the kernel must write the child's id to it. */
static pid_t *cached_tid(void) {
    const uint32_t *field = dlsym(RTLD_DEFAULT, "_thread_db_pthread_tid"); /* {bits, count, offset} */
    return field ? (pid_t *)((char *)pthread_self() + field[2]) : NULL;
}

/* In the child: report that it is confined, and unmap the memory that it shares with the parent. */
static void detach(void) {
    signal(SIGALRM, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &state->mask, NULL);
    state->confined = 1;
    munmap(state->payload, payload_limit);
    for (int stream = 0; stream < 3; stream++) munmap(state->outputs[stream], output_limit);
    munmap(state, sizeof *state);
}

/* Finds the private writable mappings of the zygote. */
static void find_regions(void) {
    char line[512], permissions[5];
    unsigned long start, end;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) die("/proc/self/maps");
    while (region_count < MAX_REGIONS && fgets(line, sizeof line, maps)) {
        int is_private = sscanf(line, "%lx-%lx %4s", &start, &end, permissions) == 3 && strcmp(permissions, "rw-p") == 0;
        if (is_private && !strstr(line, "[stack]")) regions[region_count++] = (typeof(*regions)){(char *)start, (char *)end};
    }
    fclose(maps);
}

/* In the child, until its call arrives: writes to each piece of the heap, so that gVisor copies it now. Almost every
 * call writes to almost every piece, because each object has a reference count. */
static void prefault(void) {
    char request;
    for (int i = 0; i < region_count; i++)
        for (char *byte = regions[i].start; byte < regions[i].end;) {
            if (recv(CHILD_SOCKET, &request, 1, MSG_PEEK | MSG_DONTWAIT) >= 0) return;
            *(volatile char *)byte = *(volatile char *)byte;
            byte = (char *)(((uintptr_t)byte / COPY_BYTES + 1) * COPY_BYTES);
        }
}

/* Returns the lowest user id that no child has. */
static int free_user(void) {
    for (int user = first_user;; user++) {
        int is_free = 1;
        for (int i = 0; i < MAX_SESSIONS; i++)
            if (state->sessions[i].pid && state->sessions[i].user == user) is_free = 0;
        if (is_free) return user;
    }
}

/* Sets the user id for which the kernel counts the next child's processes. Its other ids, which are for permissions,
 * stay: it can use none of them, because its user namespace has no mapping. */
static void set_real_user(int user) {
    if (syscall(SYS_setresuid, user, -1, -1) != 0) die("setresuid");
}

/* Forks the next child. Returns 1 in the child, 0 in the parent. */
static int spawn(int namespaces) {
    int both[2], in[2], out[2], err[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both) || pipe(in) || pipe(out) || pipe(err)) die("pipe");
    pid_t *tid = cached_tid();
    state->confined = 0;
    unsigned long flags = (namespaces ? NAMESPACES : 0) | SIGCHLD | (tid ? CLONE_CHILD_SETTID : 0);
    int own_user = (int)geteuid(), user = first_user >= 0 ? free_user() : own_user;
    if (first_user >= 0) set_real_user(user);
    pid_t pid = (pid_t)syscall(SYS_clone, flags, NULL, NULL, tid, 0);
    if (pid < 0) die("clone");
    if (pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        dup3(both[0], CHILD_SOCKET, O_CLOEXEC);
        confine(namespaces);
        detach();
        if (namespaces) prefault();
        return 1;
    }
    if (first_user >= 0) set_real_user(own_user);
    close(both[0]);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    fcntl(both[1], F_SETFL, O_NONBLOCK);
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    state->next = (struct child){pid, both[1], in[1], out[0], err[0], user};
    return 0;
}

static void close_child(struct child *child) {
    close(child->socket);
    if (child->in >= 0) close(child->in);
    if (child->out >= 0) close(child->out);
    if (child->err >= 0) close(child->err);
    child->pid = 0;
}

/* waitpid() for exits only. A child that made this process its tracer is also reported at every stop; it is killed. */
static pid_t wait_exit(pid_t pid, int *status, int options) {
    for (;;) {
        pid_t reported = waitpid(pid, status, options);
        if (reported < 0 && errno == EINTR) continue;
        if (reported <= 0 || WIFEXITED(*status) || WIFSIGNALED(*status)) return reported;
        kill(reported, SIGKILL);
    }
}

static void kill_child(struct child *child) {
    kill(child->pid, SIGKILL);
    wait_exit(child->pid, &state->response.wait_status, 0);
}

static int is_kept(pid_t pid) {
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (state->sessions[i].pid == pid) return 1;
    return state->next.pid == pid;
}

/* Without a pid namespace the end of a child does not end its descendants. They became children of this process (it is
 * a subreaper), which kills them here. */
static void sweep(pid_t child) {
    char path[64];
    int status;
    kill(-child, SIGKILL);
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    for (int more = 1; more;) {
        more = 0;
        FILE *list = fopen(path, "r");
        if (!list) die("/proc/self/task/children");
        for (int pid; fscanf(list, "%d", &pid) == 1;) {
            if (is_kept(pid)) continue;
            kill(pid, SIGKILL);
            wait_exit(pid, &status, 0);
            more = 1;
        }
        fclose(list);
    }
}

/* Reads all available output. Returns 0 if the stream is open, 1 at end of file, -1 over the limit. Files are cut. */
static int drain(int fd, int stream) {
    for (;;) {
        ssize_t got = read(fd, state->scratch, sizeof state->scratch);
        if (got < 0) return errno == EINTR ? 0 : (errno == EAGAIN ? 0 : 1);
        if (got == 0) return 1;
        size_t limit = stream == 2 ? state->request.file_bytes : state->request.output_bytes;
        size_t free_bytes = limit - state->stored[stream];
        size_t take = (size_t)got < free_bytes ? (size_t)got : free_bytes;
        memcpy(state->outputs[stream] + state->stored[stream], state->scratch, take);
        state->stored[stream] += take;
        if ((size_t)got > free_bytes && stream < 2 && state->request.verb != CODE_JUDGE) return -1; /* else cut */
    }
}

static size_t head_bytes(void) { return sizeof state->request + state->request.code_bytes; }

/* Sends the request and its code, as much as the socket takes. A child that closed its socket gets no more. */
static void send_head(struct child *child) {
    while (state->sent < head_bytes()) {
        size_t head = sizeof state->request;
        const char *from = state->sent < head ? (char *)&state->request + state->sent : state->payload + state->sent - head;
        size_t left = (state->sent < head ? head : head_bytes()) - state->sent;
        ssize_t sent = send(child->socket, from, left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return;
        state->sent = sent < 0 ? head_bytes() : state->sent + (size_t)sent;
    }
}

/* Writes stdin, as much as the pipe takes, and closes it at the end, or if the child has closed its end. */
static void write_stdin(struct child *child) {
    while (child->in >= 0) {
        size_t left = state->request.stdin_bytes - state->written;
        ssize_t written = left ? write(child->in, state->payload + state->request.code_bytes + state->written, left) : -1;
        if (left && written < 0 && errno == EINTR) continue;
        if (left && written < 0 && errno == EAGAIN) return;
        if (written > 0) {
            state->written += (size_t)written;
            continue;
        }
        close(child->in);
        child->in = -1;
    }
}

/* Returns 1 if the session reported the end of its cell; the wait status of the response is then that of a process with
 * the same exit status or signal. Returns 0 if it has not, -1 if its socket is closed, so that it never will. */
static int cell_ended(struct child *child) {
    int32_t status;
    ssize_t got = recv(child->socket, &status, sizeof status, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (got != sizeof status) return -1;
    state->response.wait_status = status < 0 ? -status & 0x7f : (status & 0xff) << 8;
    return 1;
}

/* Reaps ended children. Returns whether `child` is one of them. */
static int reap(int signals, struct child *child) {
    int reaped = 0, status;
    if (read(signals, state->scratch, sizeof state->scratch) < 0 && errno != EAGAIN) die("signalfd");
    for (pid_t pid; (pid = wait_exit(-1, &status, WNOHANG)) > 0;) {
        if (pid == child->pid) {
            state->response.wait_status = status;
            reaped = 1;
            continue;
        }
        if (state->next.pid == pid) close_child(&state->next);
        for (int i = 0; i < MAX_SESSIONS; i++) /* a session that ended between its cells */
            if (state->sessions[i].pid == pid) close_child(&state->sessions[i]);
    }
    return reaped;
}

/* Reads the remaining output of an ended child or cell. */
static void drain_rest(struct child *child) {
    if (child->out >= 0 && drain(child->out, 0) < 0) state->response.reason = OUTPUT_LIMIT;
    if (child->err >= 0 && drain(child->err, 1) < 0) state->response.reason = OUTPUT_LIMIT;
    if (state->request.file_bytes) drain(child->socket, 2);
}

/* Runs the call or cell in state->request in `child` until its end. Fills state->response; `lives` is whether the child
 * is still alive. */
static void supervise(int signals, struct child *child) {
    int64_t start = microseconds(), limit = (int64_t)state->request.wall_ms * 1000;
    int64_t deadline = start + limit + (state->request.verb == CODE_JUDGE ? CODE_JUDGE_GRACE_US : 0);
    int exited = 0, reported = 0, in_session = is_of_session(state->request.verb);
    int returns_files = state->request.file_bytes > 0;
    send_head(child);
    write_stdin(child);
    while (!exited && !reported && state->response.reason == EXITED) {
        int64_t left = deadline - microseconds();
        if (left <= 0) {
            state->response.reason = TIMEOUT;
            break;
        }
        state->polls[0] = (struct pollfd){signals, POLLIN, 0};
        state->polls[1] = (struct pollfd){child->out, POLLIN, 0};
        state->polls[2] = (struct pollfd){child->err, POLLIN, 0};
        int reads = in_session || returns_files, sends = state->sent < head_bytes();
        state->polls[3] = (struct pollfd){sends || reads ? child->socket : -1, 0, 0};
        state->polls[3].events = (short)((sends ? POLLOUT : 0) | (reads ? POLLIN : 0));
        state->polls[4] = (struct pollfd){child->in, POLLOUT, 0};
        if (poll(state->polls, 5, (int)((left + 999) / 1000)) < 0 && errno != EINTR) die("poll");
        if (state->polls[3].revents && sends) send_head(child);
        if (state->polls[3].revents & ~POLLOUT && returns_files) returns_files = drain(child->socket, 2) == 0;
        if (state->polls[4].revents) write_stdin(child);
        for (int stream = 0; stream < 2; stream++) {
            int *fd = stream ? &child->err : &child->out;
            int drained = state->polls[1 + stream].revents ? drain(*fd, stream) : 0;
            if (drained > 0) {
                close(*fd);
                *fd = -1;
            } else if (drained < 0) {
                state->response.reason = OUTPUT_LIMIT;
            }
        }
        if (state->response.reason != EXITED) break;
        if (in_session && state->polls[3].revents & (POLLIN | POLLHUP | POLLERR)) reported = cell_ended(child);
        if (state->polls[0].revents) exited = reap(signals, child);
        if (exited || reported) drain_rest(child);
    }
    state->response.lives = reported > 0 && !exited && state->response.reason == EXITED;
    if (!exited && !state->response.lives) kill_child(child);
    state->response.run_us = (uint32_t)(microseconds() - start);
    if (state->request.verb == CODE_JUDGE && exited && state->response.run_us >= limit) state->response.reason = TIMEOUT;
}

/* Closes an ended child, and kills its descendants. */
static void clean_up(struct child *child, int namespaces) {
    pid_t pid = child->pid;
    close_child(child);
    if (!namespaces) sweep(pid);
}

static void interrupt(int number) { (void)number; }

/* Interrupts the read of a request each `milliseconds` (0: no longer). */
static void set_timer(int milliseconds) {
    struct timeval period = {milliseconds / 1000, milliseconds % 1000 * 1000};
    if (setitimer(ITIMER_REAL, &(struct itimerval){period, period}, NULL) != 0) die("setitimer");
    state->timer_runs = milliseconds > 0;
}

/* Reads the next request into state->request. Ends the prepared child after IDLE_MS without a request, before the worker
 * pauses the sandbox. The timer runs over many calls: in gVisor, a poll() with a time limit before each read takes a
 * quarter of a short call. Returns 0 at the end of the stream. */
static int read_request(int requests, int namespaces) {
    ssize_t got;
    state->waiting_since = microseconds();
    if (state->next.pid && !state->timer_runs) set_timer(TICK_MS);
    while ((got = read(requests, &state->request, sizeof state->request)) < 0) {
        if (errno != EINTR) die("request");
        if (!state->next.pid || microseconds() - state->waiting_since < IDLE_MS * 1000) continue;
        kill_child(&state->next);
        clean_up(&state->next, namespaces);
        set_timer(0);
    }
    return got > 0 && read_all(requests, (char *)&state->request + got, sizeof state->request - (size_t)got);
}

/* Executes state->request. Fills state->response. */
static void respond(int signals, int namespaces) {
    struct child *session = &state->sessions[state->request.session], *child = session;
    uint32_t verb = state->request.verb;
    int status;
    state->response = (struct response){.id = state->request.id, .reason = EXITED};
    state->sent = state->written = state->stored[0] = state->stored[1] = state->stored[2] = 0;
    if (is_of_session(verb) && session->pid && wait_exit(session->pid, &status, WNOHANG) > 0) clean_up(session, namespaces);
    if ((verb == CLOSE || verb == OPEN) && session->pid) {
        kill_child(session);
        clean_up(session, namespaces);
    }
    if (verb == CLOSE || (verb == CELL && !session->pid)) {
        state->response.reason = NO_SESSION;
        return;
    }
    if (verb != CELL) {
        child = is_of_session(verb) ? session : &state->next;
        *child = state->next;
        if (child != &state->next) state->next.pid = 0;
    }
    supervise(signals, child);
    if (verb != CELL && !state->confined) state->response.reason = SETUP_FAILED;
    if (!state->response.lives) clean_up(child, namespaces);
}

/* serve(requests, responses, namespaces, payload bytes, output bytes, other processes of the user, first user id): the
 * loop. In a child, which must run the code, it returns the tuple of receive_call(). Exits when the worker closes the pipe. */
static Object *serve(Object *self, Object *arguments) {
    (void)self;
    int requests, responses, namespaces, max_payload, output_bytes, others;
    if (!PyArg_ParseTuple(arguments, "iiiiiii", &requests, &responses, &namespaces, &max_payload, &output_bytes, &others,
                          &first_user))
        return NULL;
    if (namespaces) seal(first_user, first_user >= 0 ? USERS : 0);
    zygote_bytes = mapped(); /* before the mappings that only the parent has */
    payload_limit = (size_t)max_payload;
    output_limit = (size_t)output_bytes;
    find_regions();
    state = shared(sizeof *state);
    state->payload = shared(payload_limit);
    for (int stream = 0; stream < 3; stream++) state->outputs[stream] = shared(output_limit);
    sigemptyset(&state->mask);
    sigaddset(&state->mask, SIGCHLD);
    sigprocmask(SIG_BLOCK, &state->mask, NULL);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = interrupt}, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int signals = signalfd(-1, &state->mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0) die("signalfd");
    if (!namespaces && prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) die("subreaper");
    write_all(responses, &(struct response){.id = 0}, sizeof(struct response)); /* warmed up */
    for (int is_used = 0;; is_used = 1) {
        if (is_used && !state->next.pid && spawn(namespaces)) return receive_call(zygote_bytes, others);
        if (!read_request(requests, namespaces)) break;
        if (!state->next.pid && spawn(namespaces)) return receive_call(zygote_bytes, others);
        size_t payload_bytes = (size_t)state->request.code_bytes + state->request.stdin_bytes;
        if (payload_bytes > payload_limit || state->request.output_bytes > output_limit ||
            state->request.file_bytes > (is_of_session(state->request.verb) ? 0 : output_limit) ||
            state->request.session >= MAX_SESSIONS || state->request.verb > SCRIPT) {
            errno = EMSGSIZE;
            die("request");
        }
        if (payload_bytes) read_all(requests, state->payload, payload_bytes);
        respond(signals, namespaces);
        state->response.stdout_bytes = (uint32_t)state->stored[0];
        state->response.stderr_bytes = (uint32_t)state->stored[1];
        state->response.file_bytes = (uint32_t)state->stored[2];
        write_all(responses, &state->response, sizeof state->response);
        for (int stream = 0; stream < 3; stream++) write_all(responses, state->outputs[stream], state->stored[stream]);
    }
    if (state->next.pid) kill_child(&state->next);
    _exit(0);
}

static struct method methods[] = {
    {"serve", serve, METH_VARARGS, "Fork a process per call; return in it."},
    {"next_cell", next_cell, METH_VARARGS, "In a session: report the status of its cell; return the next one."},
    {"flush", flush, METH_VARARGS, "Write the buffers of C's own streams."},
    {0},
};
static struct module definition = {.references = 1, .name = "forkserver", .size = -1, .methods = methods};

__attribute__((visibility("default"))) Object *PyInit_forkserver(void) { return PyModule_Create2(&definition, STABLE_ABI); }
