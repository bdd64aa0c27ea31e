/* The ring's crash points, for these programs: a process leaves word of the last one it
 * passed, where it outlasts the process, and now and then stands still for a moment, as
 * one does that is preempted there. Included before every file of the package. */
#ifndef KILLS_STEP_H
#define KILLS_STEP_H

void rig_step(int point);
#define PP3_STEP(point) rig_step(point)

/* Which planted fault is switched on: see planted.py. */
int rig_fault(int number);
#endif
