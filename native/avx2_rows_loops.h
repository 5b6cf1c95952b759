// The inner step of loops that multiply bytes and sum them up in 16 bits, as text for the assembler: four codes of each
// of up to six rows, by the weights of 16 outputs in ymm12 and ymm13. Rows begin at a, and lie s bytes apart; s3 and s5
// are three and five times as much. The sums of a row are two of the registers from ymm0 to ymm11.
#pragma once

#define BITSTRATA_ROW(ADDRESS, X, Y)                                                             \
    "vpbroadcastd " ADDRESS ",%%ymm14\n\tvpmaddubsw %%ymm12,%%ymm14,%%ymm15\n\t"                 \
    "vpmaddubsw %%ymm13,%%ymm14,%%ymm14\n\tvpaddw %%ymm15,%%ymm" X ",%%ymm" X "\n\t"             \
    "vpaddw %%ymm14,%%ymm" Y ",%%ymm" Y "\n\t"
#define BITSTRATA_ROWS_1 BITSTRATA_ROW("(%[a])", "0", "1")
#define BITSTRATA_ROWS_2 BITSTRATA_ROWS_1 BITSTRATA_ROW("(%[a],%[s])", "2", "3")
#define BITSTRATA_ROWS_3 BITSTRATA_ROWS_2 BITSTRATA_ROW("(%[a],%[s],2)", "4", "5")
#define BITSTRATA_ROWS_4 BITSTRATA_ROWS_3 BITSTRATA_ROW("(%[a],%[s3])", "6", "7")
#define BITSTRATA_ROWS_5 BITSTRATA_ROWS_4 BITSTRATA_ROW("(%[a],%[s],4)", "8", "9")
#define BITSTRATA_ROWS_6 BITSTRATA_ROWS_5 BITSTRATA_ROW("(%[a],%[s5])", "10", "11")

// What is to be done with the sums of each of so many rows; tables are looked up with the same ones.
#define BITSTRATA_SUMS_1(OF) OF("0", "1")
#define BITSTRATA_SUMS_2(OF) BITSTRATA_SUMS_1(OF) OF("2", "3")
#define BITSTRATA_SUMS_3(OF) BITSTRATA_SUMS_2(OF) OF("4", "5")
#define BITSTRATA_SUMS_4(OF) BITSTRATA_SUMS_3(OF) OF("6", "7")
#define BITSTRATA_SUMS_5(OF) BITSTRATA_SUMS_4(OF) OF("8", "9")
#define BITSTRATA_SUMS_6(OF) BITSTRATA_SUMS_5(OF) OF("10", "11")

#define BITSTRATA_CLEAR(X, Y) "vpxor %%xmm" X ",%%xmm" X ",%%xmm" X "\n\tvpxor %%xmm" Y ",%%xmm" Y ",%%xmm" Y "\n\t"
