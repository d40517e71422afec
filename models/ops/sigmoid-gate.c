#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_sigmoid_gate;
const OpClass op_sigmoid_gate = {.id = "sigmoid_gate", .title = "sigmoid gate"};
#endif
