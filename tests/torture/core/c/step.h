/* Included before every file: the product's crash points become places where a test
 * may step in, so that what only a race reaches is reached in every run. */
#ifndef STEP_H
#define STEP_H
void step_here(int point);
#define PP3_STEP(point) step_here(point)
extern int planted; /* which planted fault of a switched copy is on; 0: none */
#endif
