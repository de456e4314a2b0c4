// A library with NCCL's interface for members in one process, on host memory, for the faults that need a GPU otherwise:
// a member that never joins, a broadcast that never ends, and a failure in the background. An operation that hangs ends
// only with ncclCommAbort.
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {
constexpr int success = 0, remote_error = 6, in_progress = 7;
struct Comm {
    int rank;
    int broadcasts = 0;
    void* target = nullptr;  // of the operation in flight
    size_t size = 0;
    bool in_flight = false, finalized = false;
};
std::mutex mutex;
std::map<int, Comm*> members;
std::vector<std::string> sent;
int members_expected, hang_at = -1, fail_at = -1, joined, aborts, destroys;

void deliver(Comm& comm) {
    if (!comm.in_flight || comm.broadcasts - 1 == hang_at) return;
    const size_t number = comm.broadcasts - 1;
    if (comm.rank == 0) {
        sent.emplace_back(static_cast<char*>(comm.target), comm.size);
    } else {
        if (number >= sent.size()) return;
        std::memcpy(comm.target, sent[number].data(), comm.size);
    }
    comm.in_flight = false;
}
}  // namespace

extern "C" {
void fake_reset(int expected, int hang, int fail) {
    std::lock_guard lock(mutex);
    members.clear(), sent.clear();
    members_expected = expected, hang_at = hang, fail_at = fail, joined = aborts = destroys = 0;
}
int fake_aborts() { return aborts; }
int fake_destroys() { return destroys; }
// How many members wait for what never comes: the hanging broadcast, or a member that does not join.
int fake_hung() {
    std::lock_guard lock(mutex);
    int hung = 0;
    for (const auto& [rank, comm] : members)
        hung += joined < members_expected || (comm->in_flight && comm->broadcasts - 1 == hang_at);
    return hung;
}
// Whether the stream of a member has no operation; its handle is 1 + the member's rank.
int fake_idle(int stream) {
    std::lock_guard lock(mutex);
    Comm& comm = *members.at(stream - 1);
    deliver(comm);
    return !comm.in_flight;
}

int ncclGetVersion(int* version) { return *version = 22907, success; }
int ncclGetUniqueId(void* id) { return std::memset(id, 7, 128), success; }
const char* ncclGetErrorString(int) { return "remote process exited or there was a network error"; }
const char* ncclGetLastError(void*) { return ""; }
struct Id { char content[128]; };
struct Config { size_t size; unsigned magic, version; int blocking; };
int ncclCommInitRankConfig(void** comm, int, Id id, int rank, Config* config) {
    std::lock_guard lock(mutex);
    if (id.content[127] != 7 || config->magic != 0xcafebeef || config->blocking) return 4;
    *comm = members[rank] = new Comm{rank};
    joined++;
    return in_progress;
}
int ncclCommGetAsyncError(Comm* comm, int* state) {
    std::lock_guard lock(mutex);
    *state = joined < members_expected ? in_progress : success;
    if (fail_at >= 0 && comm->broadcasts > fail_at) *state = remote_error;
    return success;
}
int ncclBroadcast(const void*, void* target, size_t size, int type, int root, Comm* comm, void*) {
    std::lock_guard lock(mutex);
    if (type != 1 || root != 0 || comm->in_flight) return 4;
    comm->target = target, comm->size = size, comm->in_flight = true, comm->broadcasts++;
    return in_progress;
}
int ncclCommFinalize(Comm* comm) { return comm->finalized = true, in_progress; }
int ncclCommDestroy(Comm* comm) {
    if (!comm->finalized) return 4;
    return destroys++, success;
}
int ncclCommAbort(Comm* comm) {
    std::lock_guard lock(mutex);
    comm->in_flight = false;
    return aborts++, success;
}
}
