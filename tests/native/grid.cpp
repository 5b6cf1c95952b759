// Runs every kernel that this processor has on a grid of layers, every step without weights, and small networks, all of
// it in memory that ends at a forbidden page. Compares with a plain model, and prints digests to compare machines by.
// With the argument `overrun` it only reads what it must not, to show that this does not go unseen.
#include <cstdio>
#include <string>

#include "guarded.h"
#include "report.h"

int main(int count, char** arguments) {
    if (count > 1 && arguments[1] == std::string("overrun")) {
        const grid::Guarded memory(100);
        const volatile unsigned char* beyond = memory.data() + memory.size();
        std::printf("read %d\n", *beyond);
        return 0;
    }
    grid::Report report;
    grid::check_layers(report);
    grid::check_steps(report);
    grid::check_networks(report);
    return report.end();
}
