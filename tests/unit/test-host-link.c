/* The link between HBM and DDR: what the other direction, the node's DDR and the NIC leave of it, on every preset. */
#include "tests/check.h"

#include "hw/host-link.h"

static HostLink link_of(const char *preset, int64_t gpus_per_node)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Cluster) cluster = cluster_load(preset, 1, gpus_per_node, &error);
    check_no_error(error);
    return host_link_of(cluster, FALSE);
}

/* Shares are shares, and what is given to all at once is no more than there is. */
static void test_presets(void **state)
{
    (void)state;
    g_auto(GStrv) names = device_preset_names();
    for (char **name = names; *name != NULL; name++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Cluster) cluster = cluster_load(*name, 1, 0, &error);
        check_no_error(error);
        HostLink link = host_link_of(cluster, FALSE), yielding = host_link_of(cluster, TRUE);
        const Device *device = cluster->device;
        assert_true(link.bytes_per_s > 0.5 * device->host_link_bytes_per_s && link.bytes_per_s <= device->host_link_bytes_per_s);
        assert_true(link.duplex_rate > 0 && link.duplex_rate <= link.alone_rate && link.alone_rate <= 1);
        assert_true(link.net_rate >= 0.5 && link.net_rate <= 1 && link.rate_of_net >= 0.5 && link.rate_of_net <= 1);
        assert_true(device->host_memory_bytes_per_s > 0);
        assert_true(2 * link.duplex_rate * link.bytes_per_s <= device->host_memory_bytes_per_s * 1.0001);
        assert_int_equal(link.pooled, device->unified_memory);
        if (device->nic_on_host_link) {
            double net = MIN(cluster->scale_out_bytes_per_s, device->host_link_bytes_per_s) * link.rate_of_net;
            assert_true(net + link.net_rate * link.bytes_per_s <= device->host_link_bytes_per_s * 1.0001);
            assert_true(yielding.net_rate < 0.05 && yielding.rate_of_net > 0.95 && yielding.rate_of_net < 1);
        } else {
            assert_true(link.net_rate >= 1 && link.rate_of_net >= 1 && yielding.net_rate >= 1);
        }
    }
}

/* Measured on one GPU: 55 GB/s one way, 92 % of it each way at once; a full node is bound by its DDR. */
static void test_h200(void **state)
{
    (void)state;
    HostLink one = link_of("h200-sxm", 1), full = link_of("h200-sxm", 8);
    check_close(one.bytes_per_s, 55.4e9, 0.01);
    check_close(one.alone_rate, 1, 1e-9);
    check_close(one.duplex_rate, 38.94 / 42.25, 0.005);
    check_close(full.duplex_rate * full.bytes_per_s, 76.8e9 / 2, 1e-6);
    check_close(full.alone_rate, 1, 1e-9);
    check_close(full.net_rate, 0.5, 1e-9);
}

/* GPUs that share a host share its memory: one of two on a Grace may have all of it, and one of eight on a PCIe host. */
static void test_shared_host(void **state)
{
    (void)state;
    HostLink full = link_of("gb200", 4), pair = link_of("gb200", 2), one = link_of("gb200", 1);
    check_int(pair.bytes, full.bytes);
    check_int(one.bytes, 2 * full.bytes);
    check_close(pair.duplex_rate, full.duplex_rate, 1e-9);
    assert_true(one.duplex_rate > full.duplex_rate && one.duplex_rate * one.bytes_per_s * 2 <= 512e9);
    check_int(link_of("h200-sxm", 1).bytes, 8 * link_of("h200-sxm", 8).bytes);
}

/* A C2C link has no NIC on it and is several times as fast. */
static void test_c2c(void **state)
{
    (void)state;
    HostLink pcie = link_of("h200-sxm", 8), c2c = link_of("gh200", 1), whole = link_of("gh200", 4);
    assert_true(c2c.bytes_per_s > 4 * pcie.bytes_per_s);
    check_close(c2c.net_rate, 1, 1e-9);
    check_close(c2c.duplex_rate, whole.duplex_rate, 1e-9); /* its memory is its own, however many GPUs the node has */
    check_int(c2c.bytes, whole.bytes);
}

int main(void)
{
    const struct CMUnitTest group[] = {
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_h200),
        cmocka_unit_test(test_shared_host),
        cmocka_unit_test(test_c2c),
    };
    return cmocka_run_group_tests(group, NULL, NULL);
}
