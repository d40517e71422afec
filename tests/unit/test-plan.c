/* Plans: defaults, and every rule between fields with the message that names the way out. */
#include "tests/property/random-plan.h"

#include "sim/base/error.h"

#define BASE "model.config=qwen3-30b-a3b cluster.preset=h200-sxm cluster.gpus_per_node=8 "
/* passes of two micro-batches side by side */
#define BESIDE BASE "parallel.ep=4 moe.overlap_micro_batches=true precision.parameters=bf16 parallel.sharding=zero1 workload.global_batch=24 "
#define DENSE "model.config=llama-3.1-8b cluster.preset=h200-sxm cluster.gpus_per_node=8 "

typedef struct PlanCase {
    const char *fields;
    const char *path, *says;
} PlanCase;

static const PlanCase refused[] = {
    {BASE "parallel.dp_replicate=3", "parallel.dp_replicate", "3 does not divide the 8 ranks"},
    {BASE "parallel.dp_replicate=2 parallel.dp_shard=8", "parallel", "make 16 ranks, the cluster has 8; set dp_shard to -1"},
    {BASE "parallel.dp_shard=0", "parallel.dp_shard", "0 is not a degree"},
    {BASE "parallel.ep=3", "parallel", "the nearest legal ep is 2"},
    {BASE "parallel.ep=8 model.overrides.n_routed_experts=12", "parallel", "experts; the nearest legal ep is 4"},
    {DENSE "parallel.ep=2", "parallel", "has none, use 1"},
    {BASE "workload.global_batch=20", "workload", "the nearest is 24"},
    {BASE "workload.global_batch=17179869184", "workload.global_batch", "from 1 to 1073741824"},
    {BASE "workload.seq_len=1048576 workload.micro_batch=4096", "workload", "exceeds 2^31 tokens"},
    {BASE "workload.seq_len=16384 loss.seq_chunk=1", "loss", "at most 8192 are simulated: raise them"},
    {DENSE "workload.routing.kind=zipf", "workload", "has no experts; leave it out"},
    {DENSE "workload.mode=lora workload.lora.targets=experts", "workload.lora.targets", "names experts"},
    {BASE "workload.lora.rank=8", "workload.lora", "set workload.mode to \"lora\""},
    {BASE "workload.routing.exponent=1", "workload.routing.exponent", "no effect unless kind is \"zipf\""},
    {BASE "workload.routing.kind=measured", "workload.routing.load_file", "missing"},
    {BASE "workload.routing.sample_tokens=64", "workload.routing.sample_tokens", "no effect unless kind is \"router\""},
    {BASE "workload.routing.replicas=9", "workload.routing.replicas", "9 is more than the 8 expert-parallel groups"},
    {BASE "workload.routing.load_file=x.json", "workload.routing.load_file", "no effect unless kind is \"measured\""},
    {BASE "memory.keep=matmul", "memory.keep", "no effect unless memory.recompute is \"selective\""},
    {BASE "memory.recompute=selective memory.keep=matmull", "memory.keep", "did you mean \"matmul\"?"},
    {BASE "memory.recompute=selective memory.keep=[\"matmul\",\"attention\",\"matmul\"]", "memory.keep", "names \"matmul\" twice"},
    {BASE "workload.mode=lora workload.lora.targets=[\"experts\",\"experts\"]", "workload.lora.targets", "names \"experts\" twice"},
    {BASE "parallel.tp=2", "parallel.tp", "2 is not modelled yet; leave it at 1"},
    {BASE "parallel.cp=2", "parallel.cp", "leave it at 1"},
    {BASE "parallel.pp=2", "parallel.pp", "leave it at 1"},
    {BASE "parallel.sharding=zero1", "parallel", "set precision.parameters to \"bf16\""},
    {BASE "parallel.sharding=zero2", "parallel.sharding", "zero1"},
    {BASE "precision.parameters=bf16 parallel.sharding=none parallel.fsdp.prefetch=explicit", "parallel.fsdp", "unless parallel.sharding is \"fsdp\""},
    {BASE "precision.parameters=bf16 parallel.sharding=none parallel.gradient_buffers=false", "parallel", "only on one data-parallel rank"},
    {BASE "cluster.gpus_per_node=9", "cluster", "gpus_per_node 9 is more than its nodes have, 8"},
    {BASE "cluster.gpus_per_node=1 parallel.gradient_buffers=false", "parallel.gradient_buffers", "unless parallel.sharding is \"none\""},
    {BASE "parallel.sharding=none cluster.gpus_per_node=1 parallel.gradient_buffers=false", "parallel", "set precision.parameters to \"bf16\""},
    {BASE "moe.capacity_factor=-1", "moe.capacity_factor", "-1"},
    {BASE "moe.capacity_rule=tutel", "moe.capacity_rule", "no effect without a capacity"},
    {BASE "moe.capacity_factor=1 moe.capacity_min=8", "moe.capacity_min", "no effect unless moe.capacity_rule is \"deepspeed\""},
    {BASE "moe.capacity_multiple=8", "moe.capacity_multiple", "no effect without a capacity"},
    {BASE "moe.drop=probability", "moe.drop", "no effect without a capacity"},
    {BASE "moe.drop=best", "moe.drop", "not \"best\""},
    {BASE "moe.capacity_factor=1 moe.capacity_rule=switch", "moe", "is defined for 1 experts per token"},
    {DENSE "moe.capacity_factor=1", "moe", "has no experts; leave it out"},
    {BASE "parallel.ep=4 moe.redundant_experts=3", "moe", "the nearest legal number is 4"},
    {BASE "parallel.ep=4 moe.redundant_experts=4 moe.pad_to_capacity=true", "moe.pad_to_capacity", "no rule says how its copies divide them"},
    {BASE "moe.redundant_experts=1", "moe", "more than one copy of each expert on each of 1 ranks"},
    {BASE "moe.replace_every=100", "moe.replace_every", "no effect unless moe.placement is \"eplb\""},
    {BASE "moe.balance_steps=100", "moe.balance_steps", "no effect unless moe.balance is set"},
    {BASE "moe.aux_loss_scope=sequence", "moe.aux_loss_scope", "no effect without a balancing loss"},
    {BASE "moe.balance=aux_loss moe.aux_loss_coeff=0", "moe.aux_loss_coeff", "must be above 0"},
    {BASE "moe.aux_loss_coeff=-1", "moe.aux_loss_coeff", "-1"},
    {BASE "loss.index_kl_coeff=1", "loss.index_kl_coeff", "has no indexer"},
    {BASE "moe.balance=bias", "moe", "use \"aux_loss\""},
    {"model=kimi-linear-48b-a3b cluster.preset=ascend-910c kernels=eager", "kernels", "an eager \"kda\" multiplies in fp32"},
    {BASE "moe.balance=aux_loss workload.routing.kind=router", "moe.balance", "works on drawn loads"},
    {BASE "moe.dispatch=deepep", "moe.dispatch", "has no effect without expert parallelism"},
    {BASE "parallel.ep=4 moe.dispatch=deep", "moe.dispatch", "not \"deep\""},
    {BASE "parallel.ep=4 moe.dispatch=deepep moe.capacity_factor=1 moe.pad_to_capacity=true", "moe", "use dispatch \"all_to_all\" or \"hierarchical\""},
    {BASE "moe.shared_overlap=true", "moe", "without expert parallelism no rows travel"},
    {BASE "moe.overlap_chunks=2", "moe.overlap_chunks", "without expert parallelism no rows travel"},
    {BASE "parallel.ep=4 moe.overlap_chunks=9", "moe.overlap_chunks", "8"},
    {BASE "parallel.ep=4 moe.overlap_chunks=0", "moe.overlap_chunks", "0"},
    {BASE "parallel.ep=4 moe.overlap_chunks=4 workload.seq_len=3", "moe.overlap_chunks", "more than the 3 tokens of a micro-batch"},
    {BASE "parallel.ep=4 moe.overlap_chunks=2 moe.capacity_factor=1 moe.pad_to_capacity=true", "moe.overlap_chunks", "leave one of them out"},
    {DENSE "moe.overlap_chunks=2", "moe", "has no experts; leave it out"},
    {DENSE "moe.overlap_micro_batches=true", "moe", "has no experts; leave it out"},
    {BASE "moe.overlap_micro_batches=true", "moe.overlap_micro_batches", "without expert parallelism no rows travel"},
    {BESIDE "workload.global_batch=8", "moe.overlap_micro_batches", "a step has one micro-batch"},
    {BESIDE "moe.overlap_chunks=2", "moe.overlap_micro_batches", "leave the others out"},
    {BESIDE "parallel.sharding=fsdp", "moe.overlap_micro_batches", "set parallel.sharding to \"zero1\" or \"none\""},
    {BESIDE "memory.recompute=full", "moe.overlap_micro_batches", "set memory.recompute to \"none\" or \"selective\""},
    {BESIDE "memory.offload_fraction=0.5", "moe.overlap_micro_batches", "leave memory.cache.ddr_bytes and memory.offload_fraction out"},
    {BESIDE "memory.recompute=selective memory.cache.hbm_bytes=1GiB", "moe.overlap_micro_batches", "results of two micro-batches at a time"},
    {BESIDE "memory.recompute=selective memory.cache.ddr_bytes=1GiB", "moe.overlap_micro_batches", "no places for copies"},
    {BESIDE "memory.recompute=selective moe.aux_loss_coeff=0.1 moe.aux_loss_scope=global_batch", "moe.overlap_micro_batches",
     "set moe.aux_loss_scope to \"micro_batch\""},
    {BASE "parallel.ep=4 moe.shared_overlap=true", "moe", "the model has no shared experts"},
    {DENSE "moe.dispatch=deepep", "moe", "has no experts; leave it out"},
    {BASE "optimizer.kind=muom", "optimizer.kind", "muon"},
    {BASE "optimizer.sharding=layer_wise", "optimizer.sharding", "unless parallel.sharding is \"zero1\""},
    {BASE "optimizer.sharding=layers", "optimizer.sharding", "layer_wise"},
    {BASE "precision.parameters=bf16 parallel.sharding=zero1 optimizer.sharding=layer_wise optimizer.offload=true", "optimizer.offload", "element_wise"},
    {BASE "optimizer.per_head=true", "optimizer.per_head", "unless optimizer.kind is \"muon\""},
    {BASE "optimizer.master_weights=true", "optimizer.master_weights", "precision.parameters to \"bf16\""},
    {BASE "memory.offload_fraction=1.5", "memory.offload_fraction", "1.5"},
    {BASE "memory.offload_fraction=0.5 memory.recompute=full", "memory.offload_fraction", "set memory.recompute to \"none\""},
    {BASE "memory.offload_layers=2", "memory.offload_layers", "no effect without memory.offload_fraction"},
    {BASE "memory.cache.hbm_bytes=1GiB", "memory.cache", "set memory.recompute to \"selective\""},
    {BASE "memory.recompute=selective memory.cache.policy=lfu", "memory.cache.policy", "lfu"},
    {BASE "memory.recompute=selective memory.cache.window=0", "memory.cache.window", "0"},
    {BASE "memory.recompute=selective memory.cache.policy=lru", "memory.cache.policy", "no effect without a budget"},
    {BASE "memory.recompute=selective memory.cache.window=2", "memory.cache.window", "no effect without memory.cache.ddr_bytes"},
    {BASE "memory.recompute=selective memory.cache.hbm_bytes=1GiB memory.cache.window=2", "memory.cache.window", "nothing is copied"},
    {BASE "memory.host_copies=yield", "memory.host_copies", "nothing is copied"},
    {BASE "memory.offload_fraction=0.5 memory.host_copies=wait", "memory.host_copies", "wait"},
    {"model=qwen3-30b-a3b cluster.preset=gb200 memory.offload_fraction=0.5 memory.host_copies=yield", "memory.host_copies", "takes another way"},
    {BASE "memory.offload_fraction=0.5 memory.offload_layers=3000", "memory.offload_layers", "3000 is more than the 48 layers"},
    {BASE "memory.recompute=selective memory.cache.hbm_bytes=-1", "memory.cache.hbm_bytes", "-1"},
    {BASE "memory.recompute=selective memory.cache.hbm_bytes=all", "memory.cache.hbm_bytes", "or \"fit\", not \"all\""},
    {BASE "memory.recompute=selective memory.cache.hbm_bytes=fitt", "memory.cache.hbm_bytes", "or \"fit\", not \"fitt\""},
    {BASE "memory.recompute=selective memory.cache.hbm_bytes=8Gib", "memory.cache.hbm_bytes", "\"8Gib\" is not a size"},
    {BASE "memory.recompute=selective memory.cache.hbm_bytes=true", "memory.cache.hbm_bytes", "or \"fit\", not true"},
    {BASE "loss.seq_chunk=fitt", "loss.seq_chunk", "must be a number of tokens (0 = not chunked), or \"fit\", not \"fitt\""},
    {BASE "loss.seq_chunk=2.5", "loss.seq_chunk", "2.5"},
    {BASE "loss.seq_chunk=-1", "loss.seq_chunk", "-1"},
    {BASE "memory.recompute=selective memory.cache.ddr_bytes=1GiB memory.cache.window=1000", "memory.cache.window", "at most 47 make sense"},
    {"model.config=llama-3.1-8b cluster.preset=a100-sxm-80 precision.gemm=fp8", "precision.gemm", "no fp8 peak in its descriptor"},
    {BASE "precision.fp8_weights=cached", "precision.fp8_weights", "unless precision.gemm is \"fp8\""},
    {BASE "precision.gemm=fp8 precision.fp8_weights=kept", "precision.fp8_weights", "cached"},
    {BASE "precision.gemm=fp8 precision.fp8_weights=cached", "precision.fp8_weights", "set parallel.sharding to \"zero1\" or \"none\""},
    {BASE "precision.gemm=fp8 precision.fp8_weights=primary parallel.sharding=zero1 precision.parameters=bf16", "precision.fp8_weights",
     "set optimizer.master_weights to true"},
    {BASE "paralel.ep=2", "paralel", "parallel"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(refused); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = plan_of_words(refused[i].fields, &error);
        if (plan != NULL) {
            print_error("accepted: %s\n", refused[i].fields);
        }
        assert_null(plan);
        check_contains(error->message, refused[i].path);
        check_error(&error, MOESIM_ERROR_INPUT, refused[i].says);
    }
}

static void test_defaults(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of_words(BASE, &error);
    check_no_error(error);
    check_int(plan->dp_replicate * plan->ep * plan->etp * plan->tp * plan->cp * plan->pp, 1);
    check_int(plan->dp_shard, 8);
    check_int(plan->efsdp, 8);
    check_int(plan->micro_batch, 1);
    check_int(plan->global_batch, 8);
    check_int(plan->n_micro_batches, 1);
    check_int(plan->routing, PLAN_ROUTING_BALANCED);
    check_int(plan->recompute, PLAN_RECOMPUTE_NONE);
    check_int(plan->seq_chunk + plan->vocab_chunk, 0);
    check_int(plan->optimizer, PLAN_ADAMW);
    check_int(plan->parameters, DTYPE_FP32);
    check_int(plan->reduce, DTYPE_FP32);
    check_int(plan->compute, DTYPE_BF16);
    check_int(plan->reshard_after_forward, TRUE);
    for (int i = 0; i < N_OPS; i++) {
        check_int(plan->eager[i], FALSE);
    }
}

/* What is not sharded lies alike on all ranks, however their number is written. */
static void test_replicas(void **state)
{
    (void)state;
    for (int64_t replicas = 1; replicas <= 8; replicas *= 2) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = g_strdup_printf(BASE "parallel.sharding=none precision.parameters=bf16 parallel.ep=4 parallel.dp_replicate=%d",
                                                 (int)replicas);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        check_no_error(error);
        check_int(plan->dp_replicate, 1);
        check_int(plan->dp_shard, 8);
        check_int(plan->efsdp, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_defaults), cmocka_unit_test(test_replicas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
