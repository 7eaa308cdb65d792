// Preloaded into a program, writes down in order what it asks of the files below a folder: each write, truncation, new
// or removed name and synchronisation, as tests/support/faults/power.py reads them. POWER_FOLDER and POWER_LOG name both.
//
// An entry is: kind (1 byte), inode, offset, length of the name, length of the data (8 bytes each), name, data.
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int MOST = 1 << 16;
bool is_watched[MOST];
std::recursive_mutex turn;  // one call after the other, so that the order of entries is that of the calls

std::string folder() {
    const char* found = getenv("POWER_FOLDER");
    return found ? found : "";
}

int log_file() {
    static int file = (int)syscall(SYS_openat, AT_FDCWD, getenv("POWER_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    return file;
}

std::string absolute(const char* path) {
    if (path[0] == '/') return path;
    char here[4096];
    return std::string(getcwd(here, sizeof here) ? here : "") + "/" + path;
}

bool is_inside(const std::string& path) {
    std::string place = folder();
    return !place.empty() && (path == place || path.rfind(place + "/", 0) == 0);
}

void note(char kind, uint64_t inode, uint64_t offset, const std::string& name, const void* data, size_t length) {
    uint64_t numbers[4] = {inode, offset, name.size(), length};
    std::string entry(1, kind);
    entry.append((const char*)numbers, sizeof numbers).append(name).append((const char*)data, length);
    if (syscall(SYS_write, log_file(), entry.data(), entry.size()) != (long)entry.size()) abort();
}

uint64_t inode_of(int file) {
    struct stat found;
    return fstat(file, &found) ? 0 : found.st_ino;
}

bool watches(int file) { return file >= 0 && file < MOST && is_watched[file]; }

int open_watched(int at, const char* path, int flags, mode_t mode) {
    std::lock_guard<std::recursive_mutex> guard(turn);
    bool inside = (at == AT_FDCWD || path[0] == '/') && is_inside(absolute(path));
    bool is_new = inside && (flags & O_CREAT) && access(path, F_OK);
    int file = (int)syscall(SYS_openat, at, path, flags, mode);
    if (file >= 0 && file < MOST) is_watched[file] = inside;
    if (file >= 0 && is_new) note('c', inode_of(file), 0, absolute(path), "", 0);
    if (file >= 0 && inside && !is_new && (flags & O_TRUNC)) note('t', inode_of(file), 0, "", "", 0);
    return file;
}

long write_watched(int file, const void* data, size_t length, off_t offset, bool is_placed) {
    std::lock_guard<std::recursive_mutex> guard(turn);
    off_t start = is_placed ? offset : watches(file) ? lseek(file, 0, SEEK_CUR) : 0;
    if (watches(file) && !is_placed && (fcntl(file, F_GETFL) & O_APPEND)) start = lseek(file, 0, SEEK_END);
    long done = is_placed ? syscall(SYS_pwrite64, file, data, length, offset) : syscall(SYS_write, file, data, length);
    if (done > 0 && watches(file)) note('w', inode_of(file), (uint64_t)start, "", data, (size_t)done);
    return done;
}

int cut_watched(int file, off_t length) {
    std::lock_guard<std::recursive_mutex> guard(turn);
    int answer = (int)syscall(SYS_ftruncate, file, length);
    if (!answer && watches(file)) note('t', inode_of(file), (uint64_t)length, "", "", 0);
    return answer;
}

int sync_watched(int file, int call) {
    std::lock_guard<std::recursive_mutex> guard(turn);
    int answer = (int)syscall(call, file);
    if (!answer && watches(file)) note('s', inode_of(file), 0, "", "", 0);
    return answer;
}

}  // namespace

#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & O_CREAT) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

extern "C" {
int open(const char* path, int flags, ...) { MODE(flags) return open_watched(AT_FDCWD, path, flags, mode); }
int open64(const char* path, int flags, ...) { MODE(flags) return open_watched(AT_FDCWD, path, flags, mode); }
int openat(int at, const char* path, int flags, ...) { MODE(flags) return open_watched(at, path, flags, mode); }
int openat64(int at, const char* path, int flags, ...) { MODE(flags) return open_watched(at, path, flags, mode); }
ssize_t write(int file, const void* data, size_t length) { return write_watched(file, data, length, 0, false); }
ssize_t pwrite(int file, const void* data, size_t length, off_t at) { return write_watched(file, data, length, at, true); }
ssize_t pwrite64(int file, const void* data, size_t length, off64_t at) { return write_watched(file, data, length, at, true); }
int ftruncate(int file, off_t length) noexcept { return cut_watched(file, length); }
int ftruncate64(int file, off64_t length) noexcept { return cut_watched(file, length); }
int fsync(int file) { return sync_watched(file, SYS_fsync); }
int fdatasync(int file) { return sync_watched(file, SYS_fdatasync); }
int close(int file) {
    std::lock_guard<std::recursive_mutex> guard(turn);
    if (watches(file)) is_watched[file] = false;
    return (int)syscall(SYS_close, file);
}
int rename(const char* path, const char* target) noexcept {
    std::lock_guard<std::recursive_mutex> guard(turn);
    int answer = (int)syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, target, 0);
    std::string to = absolute(target);
    if (!answer && is_inside(to)) note('m', 0, 0, absolute(path), to.data(), to.size());
    return answer;
}
int unlink(const char* path) noexcept {
    std::lock_guard<std::recursive_mutex> guard(turn);
    int answer = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!answer && is_inside(absolute(path))) note('u', 0, 0, absolute(path), "", 0);
    return answer;
}
int mkdir(const char* path, mode_t mode) noexcept {
    std::lock_guard<std::recursive_mutex> guard(turn);
    int answer = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    struct stat found;
    if (!answer && is_inside(absolute(path)) && !stat(path, &found)) note('d', found.st_ino, 0, absolute(path), "", 0);
    return answer;
}
}
