/* The child's part of the fork server: trusted code from the fork to the first line of the snippet.
 *
 * forkserver.c calls seal() once in the zygote, and confine() in each child, which is forked before its call arrives.
 * receive_call() waits for the call, sets its limits and returns its code to program.py, which runs it and calls flush().
 * A session calls next_cell() after each cell.
 */
#include "forkserver.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/wait.h>

enum { MAX_FILE_BYTES = 32 << 20, MAX_OPEN_FILES = CHILD_SOCKET + 1, MAIN_THREAD = 1, UNPRIVILEGED_USER = 65534 };

/* System calls that no snippet needs, and with which a snippet could watch another one, hang permanently, or take memory
 * of the kernel that no limit counts: attributes of files, System V and POSIX queues, asynchronous I/O, timers, namespaces,
 * descriptors in messages. gVisor never frees a pair of sockets that were sent through each other. */
static const unsigned refused[] = {
#ifdef SYS_inotify_init
    SYS_inotify_init,
#endif
    SYS_inotify_init1, SYS_fanotify_init, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_userfaultfd,
    SYS_perf_event_open, SYS_bpf, SYS_keyctl, SYS_add_key, SYS_request_key, SYS_io_uring_setup, SYS_setns, SYS_unshare,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_msgget, SYS_semget, SYS_shmget, SYS_mq_open, SYS_io_setup,
    SYS_timer_create, SYS_sendmsg, SYS_sendmmsg,
#ifdef SYS_setxattrat
    SYS_setxattrat,
#endif
};

/* Drops all capabilities except those in `kept`, a mask of the first 32. */
static void drop_capabilities(uint32_t kept) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {{.effective = kept, .permitted = kept}};
    if (syscall(SYS_capset, &header, sets) != 0) die("capset");
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) die(path);
    close(fd);
}

/* Enters new user and mount namespaces as the unprivileged user. Of the sandbox's users they contain that one, and `users`
 * others from `first_user` on. The kernel accepts such a map only from a process outside the new namespace, with
 * CAP_SETUID: a child that was forked before. */
static void unshare_users(int first_user, int users) {
    char map[96], group[32];
    int go[2], status, uid_map = open("/proc/self/uid_map", O_WRONLY);
    int own_user = users ? UNPRIVILEGED_USER : (int)getuid();
    int written = snprintf(map, sizeof map, "%d %d 1\n", own_user, own_user);
    if (users) snprintf(map + written, sizeof map - (size_t)written, "%d %d %d\n", first_user, first_user, users);
    snprintf(group, sizeof group, "%d %d 1", (int)getgid(), (int)getgid());
    if (uid_map < 0 || pipe(go)) die("uid_map");
    pid_t writer = fork();
    if (writer < 0) die("fork");
    if (writer == 0) {
        close(go[1]);
        read_all(go[0], &status, 1);
        if (write(uid_map, map, strlen(map)) < 0) die("write to uid_map");
        _exit(0);
    }
    if (users && syscall(SYS_setresuid, own_user, own_user, own_user) != 0) die("setresuid"); /* loses CAP_SETUID */
    if (syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS) != 0) die("unshare");
    close(uid_map);
    close(go[0]);
    close(go[1]);
    if (waitpid(writer, &status, 0) != writer || status != 0) die("uid_map");
    prctl(PR_SET_DUMPABLE, 1); /* the change of the user made /proc/self belong to root */
    write_file("/proc/self/gid_map", group);
}

/* Called once in the zygote, with effect on all its children: no terminals, over which calls could communicate, no
 * devices that reach a driver, and no refused system calls. */
void seal(int first_user, int users) {
    enum { CALLS = sizeof refused / sizeof *refused };
    struct sock_filter filter[CALLS + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (unsigned i = 0; i < CALLS; i++)
        filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i], (uint8_t)(CALLS - i), 0);
    filter[CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[CALLS + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog program = {CALLS + 3, filter};
    if (access("/dev/pts", F_OK) == 0) {
        unshare_users(first_user, users); /* a process without a mapping must not create namespaces for its children */
        if (mount("tmpfs", "/dev/pts", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NOEXEC, "size=4k") != 0) die("/dev/pts");
        if (access("/dev/net", F_OK) == 0 &&
            mount("tmpfs", "/dev/net", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NOEXEC, "size=4k") != 0)
            die("/dev/net");
        if (access("/dev/fuse", F_OK) == 0 && mount("/dev/null", "/dev/fuse", NULL, MS_BIND, NULL) != 0) die("/dev/fuse");
        drop_capabilities(users ? 1u << CAP_SETUID : 0);
    }
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) die("seccomp");
}

/* Confines the child: its own mounts, no capabilities, not traceable, only descriptors 0-2 and CHILD_SOCKET. */
void confine(int namespaces) {
    if (syscall(SYS_close_range, 3, CHILD_SOCKET - 1, 0) != 0) _exit(70);
    if (syscall(SYS_close_range, CHILD_SOCKET + 1, ~0U, 0) != 0) _exit(70);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (namespaces) {
        if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=64m,mode=1777") != 0) _exit(70);
        if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0) _exit(70);
        if (access("/dev/shm", F_OK) == 0 &&
            mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64m,mode=1777") != 0)
            _exit(70);
        if (chdir("/tmp") != 0) _exit(70);
        for (int cap = 0; cap <= 40; cap++) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
        drop_capabilities(0);
    }
    setsid();
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0);
}

/* Returns the address space of this process in bytes. The parent calls it before it maps memory that children lose. */
rlim_t mapped(void) {
    char text[64] = {0};
    int fd = open("/proc/self/statm", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) die("/proc/self/statm");
    close(fd);
    return strtoull(text, NULL, 10) * 4096;
}

/* Sets hard limits. The limit of the address space is added to what the zygote already maps. */
static void limit(const struct request *request, rlim_t zygote_bytes, int others) {
    const struct {
        int resource;
        rlim_t value;
    } limits[] = {
        {RLIMIT_AS, zygote_bytes + ((rlim_t)request->memory_mib << 20)},
        {RLIMIT_NPROC, MAIN_THREAD + request->processes + (rlim_t)others},
        {RLIMIT_FSIZE, MAX_FILE_BYTES},
        {RLIMIT_NOFILE, MAX_OPEN_FILES},
        {RLIMIT_CORE, 0},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct rlimit now;
        if (getrlimit(limits[i].resource, &now) != 0) _exit(70);
        rlim_t value = limits[i].value < now.rlim_max ? limits[i].value : now.rlim_max;
        if (setrlimit(limits[i].resource, &(struct rlimit){value, value}) != 0) _exit(70);
    }
}

/* Returns the code of the next request as bytes. Exits at the end of the stream. */
static Object *receive(struct request *request) {
    if (!read_all(CHILD_SOCKET, request, sizeof *request)) _exit(0);
    Object *code = PyBytes_FromStringAndSize(NULL, request->code_bytes);
    if (!code || (request->code_bytes && !read_all(CHILD_SOCKET, PyBytes_AsString(code), request->code_bytes))) _exit(70);
    return code;
}

/* Waits for the call. Returns (code, verb, time limit in ms, memory limit in MiB, limit of the files that it returns or
 * 0). */
Object *receive_call(rlim_t zygote_bytes, int others) {
    struct request request;
    PyOS_AfterFork_Child();
    Object *code = receive(&request);
    limit(&request, zygote_bytes, others);
    if (request.verb != OPEN && !request.file_bytes) close(CHILD_SOCKET);
    return Py_BuildValue("(Niiii)", code, (int)request.verb, (int)request.wall_ms, (int)request.memory_mib,
                         (int)request.file_bytes);
}

/* next_cell(status): in a session, reports the exit status of its cell, or minus the number of a signal, and waits for the
 * next one. Returns its code. */
Object *next_cell(Object *self, Object *arguments) {
    (void)self;
    int status;
    struct request request;
    if (!PyArg_ParseTuple(arguments, "i", &status)) return NULL;
    fflush(NULL);
    if (send(CHILD_SOCKET, &(int32_t){status}, sizeof(int32_t), MSG_NOSIGNAL) != sizeof(int32_t)) _exit(70);
    return receive(&request);
}

/* flush(): writes the buffers of C's own streams, to which extension modules write, as an interpreter's end does. */
Object *flush(Object *self, Object *arguments) {
    (void)self, (void)arguments;
    fflush(NULL);
    return Py_BuildValue("");
}
