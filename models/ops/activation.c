#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_activation;
const OpClass op_activation = {.id = "activation", .title = "activation"};
#endif
