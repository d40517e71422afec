#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_dsa_kl;
const OpClass op_dsa_kl = {.id = "dsa_kl", .title = "DSA indexer KL loss"};
#endif
