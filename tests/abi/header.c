/* The header alone, and each initializer. */
#include <nccl.h>

extern const ncclConfig_t config;
extern const ncclCollConfig_t coll_config;
extern const ncclSimInfo_t info;
extern const ncclEncryptionConfig_t encryption;
const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
const ncclCollConfig_t coll_config = NCCL_COLLCONFIG_INITIALIZER;
const ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
const ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
