// Runs every kernel that this processor has on a grid of layers, every step without weights, and small networks, all of
// it in memory that ends at a forbidden page. Compares with a plain model, and prints digests to compare machines by.
#include "report.h"

int main() {
    grid::Report report;
    grid::check_layers(report);
    grid::check_steps(report);
    grid::check_networks(report);
    return report.end();
}
