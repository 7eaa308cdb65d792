// Standard normal numbers of random streams by inversion, as Streams.normal in workers/numerics/randomness.py has them:
// the ndtri of Cephes (Moshier 1989), as torch.special.ndtri is. Where that is compiled for fused products and sums, as
// it is for processors with AVX2, the bits are the same. The 27 % within e^-2 of either end take two logarithms more;
// those of a block are worked on together.
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <vector>

#include "logarithm.hpp"
#include "registers.hpp"
#include "splitmix.hpp"

namespace {

using namespace registers;
typedef V<double> Numbers;

constexpr int BLOCK = 256;
constexpr double END = 0.13533528323661269189; // e^-2

constexpr double MIDDLE[] = {-5.99633501014107895267e1, 9.80010754185999661536e1, -5.66762857469070293439e1,
                             1.39312609387279679503e1, -1.23916583867381258016e0};
constexpr double MIDDLE_OVER[] = {1.0, 1.95448858338141759834e0, 4.67627912898881538453e0, 8.63602421390890590575e1,
                                  -2.25462687854119370527e2, 2.00260212380060660359e2, -8.20372256168333339912e1,
                                  1.59056225126211695515e1, -1.18331621121330003142e0};
// Of 1 / sqrt(-2 ln y), for y above e^-32.
constexpr double NEAR[] = {4.05544892305962419923e0, 3.15251094599893866154e1, 5.71628192246421288162e1,
                           4.40805073893200834700e1, 1.46849561928858024014e1, 2.18663306850790267539e0,
                           -1.40256079171354495875e-1, -3.50424626827848203418e-2, -8.57456785154685413611e-4};
constexpr double NEAR_OVER[] = {1.0, 1.57799883256466749731e1, 4.53907635128879210584e1, 4.13172038254672030440e1,
                                1.50425385692907503408e1, 2.50464946208309415979e0, -1.42182922854787788574e-1,
                                -3.80806407691578277194e-2, -9.33259480895457427372e-4};
// And below.
constexpr double FAR[] = {3.23774891776946035970e0, 6.91522889068984211695e0, 3.93881025292474443415e0,
                          1.33303460815807542389e0, 2.01485389549179081538e-1, 1.23716634817820021358e-2,
                          3.01581553508235416007e-4, 2.65806974686737550832e-6, 6.23974539184983293730e-9};
constexpr double FAR_OVER[] = {1.0, 6.02427039364742014255e0, 3.67983563856160859403e0, 1.37702099489081330271e0,
                               2.16236993594496635890e-1, 1.34204006088543189037e-2, 3.28014464682127739104e-4,
                               2.89247864745380683936e-6, 6.79019408009981274425e-9};

template <std::size_t COUNT> inline Numbers polynomial(Numbers x, const double (&factors)[COUNT]) {
    Numbers sum = all(factors[0]);
    for (std::size_t n = 1; n < COUNT; n++) sum = multiply_add(sum, x, all(factors[n]));
    return sum;
}

inline Numbers root(Numbers x) {
    for (int n = 0; n < W<double>; n++) x[n] = std::sqrt(x[n]);
    return x;
}

// How far from 0 the numbers are that have `least` [count] to their far side; `far`: some of them are below e^-32.
// Returns the greatest root that was met, which says whether some are.
double measure(const double *least, int count, double *out, bool far) {
    Numbers greatest = {};
    for (int n = 0; n < count; n += W<double>) {
        const Numbers y = load<double>(least + n), x = root(-2.0 * logarithm(y)), z = 1.0 / x;
        Numbers rest = z * polynomial(z, NEAR) / polynomial(z, NEAR_OVER);
        if (far) rest = x < 8.0 ? rest : z * polynomial(z, FAR) / polynomial(z, FAR_OVER);
        const Numbers size = x - logarithm(x) / x - rest;
        store<double>(out + n, y > 0.0 ? size : all(std::numeric_limits<double>::infinity()));
        greatest = larger<double>(greatest, x);
    }
    return largest<double>(greatest);
}

// The inverse of the normal distribution function at `count` numbers on (0, 1], at most BLOCK; arrays of BLOCK numbers.
// Which numbers are near an end is random, so that no branch asks it of one number.
void invert(const double *uniform, int count, double *out) {
    alignas(LINE_BYTES) double least[BLOCK], picked[BLOCK + W<double>], size[BLOCK + W<double>];
    int places[BLOCK + 1], ends = 0;
    for (int n = 0; n < count; n += W<double>) {
        const Numbers y = load<double>(uniform + n), centred = y - 0.5, square = centred * centred;
        const Numbers bent = square * polynomial(square, MIDDLE) / polynomial(square, MIDDLE_OVER);
        store<double>(out + n, multiply_add(centred, bent, centred) * 2.50662827463100050242);
        store<double>(least + n, y > 1.0 - END ? 1.0 - y : y);
    }
    for (int n = 0; n < count; n++) {
        places[ends] = n;
        ends += !(least[n] > END);
    }
    for (int n = 0; n < ends; n++) picked[n] = least[places[n]];
    for (int n = 0; n < W<double>; n++) picked[ends + n] = END;
    if (measure(picked, ends, size, false) >= 8) measure(picked, ends, size, true);
    for (int n = 0; n < ends; n++) out[places[n]] = uniform[places[n]] > 0.5 ? size[n] : -size[n];
}

// Normal numbers first .. first + count of the stream with this state; `out` has room for whole blocks.
void draw(uint64_t state, int64_t first, int64_t count, double *out) {
    alignas(LINE_BYTES) double uniform[BLOCK] = {};
    for (; count > 0; first += BLOCK, count -= BLOCK, out += BLOCK) {
        const int here = int(count < BLOCK ? count : BLOCK);
        for (int n = 0; n < here; n++)
            uniform[n] = (double(int64_t(splitmix_word(state, first + n) >> 11)) + 0.5) * 0x1p-53;
        invert(uniform, here, out);
    }
}

} // namespace

// `out` [L][n]: the first n normal numbers of the streams with these states.
extern "C" void normals(int lanes, int64_t count, const int64_t *states, double *out) {
    alignas(LINE_BYTES) double found[BLOCK];
    for (int lane = 0; lane < lanes; lane++)
        for (int64_t first = 0; first < count; first += BLOCK) {
            const int64_t here = count - first < BLOCK ? count - first : BLOCK;
            draw(uint64_t(states[lane]), first, here, found);
            std::memcpy(out + lane * count + first, found, sizeof(double) * here);
        }
}

// Prompts of linear regression (workers/data/tasks/linear_regression.py), each made while its numbers are in the
// first-level cache: `size` numbers of its weights, then for each of `length` rows those of inputs and of the noise.
//
// `numbers` [L][4][size + 1]: means and deviations of the weights, then of the inputs with the noise. `inputs`
// [L][N][length][size + 1] has labels last and 0 in place of the last row's, which is in `targets` [L][N].
extern "C" int regression_prompts(int lanes, int64_t prompts, int length, int size, const int64_t *states,
                                  const double *numbers, float *inputs, double *targets) try {
    const int width = size + 1, count = size + length * width;
    std::vector<double> drawn((count + BLOCK - 1) / BLOCK * BLOCK + W<double>);
    for (int lane = 0; lane < lanes; lane++, numbers += 4 * width) {
        const double *mean = numbers + 2 * width, *deviation = numbers + 3 * width;
        for (int64_t prompt = 0; prompt < prompts; prompt++, targets++) {
            draw(uint64_t(states[lane]), prompt * count, count, drawn.data());
            double *weights = drawn.data();
            const double *row = drawn.data() + size;
            for (int e = 0; e < size; e++) weights[e] = numbers[e] + numbers[width + e] * weights[e];
            for (int i = 0; i < length; i++, row += width, inputs += width) {
                double label = 0;
                for (int e = 0; e < size; e++) {
                    const double x = row[e] * deviation[e] + mean[e];
                    inputs[e] = float(x);
                    label += x * weights[e];
                }
                label += row[size] * deviation[size] + mean[size];
                inputs[size] = i + 1 < length ? float(label) : 0;
                if (i + 1 == length) *targets = label;
            }
        }
    }
    return 0;
} catch (const std::exception &) {
    return 1;
}
