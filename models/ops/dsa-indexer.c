#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_dsa_indexer;
const OpClass op_dsa_indexer = {.id = "dsa_indexer", .title = "DSA indexer"};
#endif
