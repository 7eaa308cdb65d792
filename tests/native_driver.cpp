// Calls the layered step on a plan in a file, for processors that this machine only emulates: driver PLAN RESULT.
// The file: how many sizes, the sizes; then for each pointer how many bytes, or -1 for null, and the bytes.
#include <cstdio>
#include <vector>

#include "plan.hpp"

extern "C" int layered_float64(const Plan *plan);

int main(int count, char **arguments) {
    FILE *from = count == 3 ? std::fopen(arguments[1], "rb") : nullptr;
    if (!from) return 2;
    int64_t sizes = 0;
    Plan plan{};
    if (!std::fread(&sizes, sizeof sizes, 1, from) || !std::fread(&plan, sizeof(int64_t), sizes, from)) return 2;
    void **pointers = reinterpret_cast<void **>(reinterpret_cast<int64_t *>(&plan) + sizes);
    std::vector<std::vector<char>> held;
    held.reserve((sizeof(Plan) - sizes * sizeof(int64_t)) / sizeof(void *));
    for (std::size_t n = 0; n < held.capacity(); n++) {
        int64_t bytes = 0;
        if (!std::fread(&bytes, sizeof bytes, 1, from)) return 2;
        held.emplace_back(bytes < 0 ? 0 : bytes);
        if (bytes > 0 && !std::fread(held.back().data(), bytes, 1, from)) return 2;
        pointers[n] = bytes < 0 ? nullptr : held.back().data();
    }
    if (layered_float64(&plan)) return 1;
    FILE *to = std::fopen(arguments[2], "wb");
    std::fwrite(plan.gradient, sizeof(double), plan.lanes * plan.total, to);
    std::fclose(to);
    return 0;
}
