// Calls a native step on a plan in a file, for processors that this machine only emulates: driver STEP PLAN RESULT.
// The file: how many sizes a plan has and how many pointers, the sizes; then for each pointer how many bytes, or -1 for
// null, and the bytes, in which the code of a generated function becomes its address. The result: the bytes of all pointers, one after another, as the step left them.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

extern "C" {
int layered_float64(const void *plan);
int pooling_float64(const void *plan);
int linearised_float64(const void *plan);
int update_float32(const void *plan);
}

constexpr int64_t CODE = 0x46554E4300000000;
extern void *functions[];
extern int functions_count;

int main(int count, char **arguments) {
    const std::map<std::string, int (*)(const void *)> steps = {{"layered_float64", layered_float64},
                                                                {"pooling_float64", pooling_float64},
                                                                {"linearised_float64", linearised_float64},
                                                                {"update_float32", update_float32}};
    FILE *from = count == 4 && steps.count(arguments[1]) ? std::fopen(arguments[2], "rb") : nullptr;
    int64_t counts[2];
    if (!from || std::fread(counts, sizeof(int64_t), 2, from) != 2) return 2;
    std::vector<int64_t> plan(counts[0] + counts[1]); // a pointer is as long as a size
    if (std::fread(plan.data(), sizeof(int64_t), counts[0], from) != std::size_t(counts[0])) return 2;
    std::vector<std::vector<char>> held(counts[1]);
    for (int64_t n = 0; n < counts[1]; n++) {
        int64_t bytes = 0;
        if (!std::fread(&bytes, sizeof bytes, 1, from)) return 2;
        if (bytes < 0) continue;
        held[n].resize(bytes);
        if (bytes && !std::fread(held[n].data(), bytes, 1, from)) return 2;
        for (int64_t at = 0; at + 8 <= bytes; at += 8) { // the codes of tests/workers/numerics/test_native_builds.py
            int64_t value = 0;
            std::memcpy(&value, held[n].data() + at, 8);
            if (value < CODE || value >= CODE + functions_count) continue;
            value = reinterpret_cast<int64_t>(functions[value - CODE]);
            std::memcpy(held[n].data() + at, &value, 8);
        }
        plan[counts[0] + n] = reinterpret_cast<int64_t>(held[n].data());
    }
    if (steps.at(arguments[1])(plan.data())) return 1;
    FILE *to = std::fopen(arguments[3], "wb");
    for (const std::vector<char> &one : held) std::fwrite(one.data(), 1, one.size(), to);
    std::fclose(to);
    return 0;
}
