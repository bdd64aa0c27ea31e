/* What a round's device calls cost a C caller: calls.py holds pyverbs against it.
 *
 * Two ends in one process, on rxe0 and rxe1; one write with an immediate a round, its
 * completions taken as the link takes them: descriptor, event, acknowledge, ask again,
 * poll, post a receive. Prints microseconds a round spent inside these calls. */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 8192, GID = 1, RECEIVES = 8 };

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    union ibv_gid gid;
    enum ibv_mtu mtu;
    char *memory;
};

static double inside; /* seconds in calls */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static void receive(struct end *e)
{
    struct ibv_sge byte = {(uintptr_t)e->memory, 1, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &byte, .num_sge = 1}, *bad;
    must(ibv_post_recv(e->qp, &wr, &bad) == 0, "post_recv");
}

static void make(struct end *e, const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

    must(list != NULL, "devices");
    while (*list && strcmp(ibv_get_device_name(*list), name) != 0)
        list++;
    must(*list != NULL, name);
    e->context = ibv_open_device(*list);
    e->pd = ibv_alloc_pd(e->context);
    e->channel = ibv_create_comp_channel(e->context);
    e->cq = ibv_create_cq(e->context, 64, NULL, e->channel, 0);
    must(posix_memalign((void **)&e->memory, 4096, 2 * SIZE) == 0, "memory");
    memset(e->memory, 1, 2 * SIZE);
    e->mr = ibv_reg_mr(e->pd, e->memory, 2 * SIZE, access);
    must(e->cq && e->mr, "cq, mr");
    struct ibv_qp_init_attr init = {.send_cq = e->cq, .recv_cq = e->cq,
                                    .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
                                    .cap = {16, RECEIVES, 1, 1, 0}};
    e->qp = ibv_create_qp(e->pd, &init);
    must(e->qp != NULL, "qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    must(ibv_modify_qp(e->qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                           IBV_QP_ACCESS_FLAGS) == 0,
         "init");
    struct ibv_port_attr port;
    must(ibv_query_port(e->context, 1, &port) == 0, "port");
    e->mtu = port.active_mtu;
    must(ibv_query_gid(e->context, 1, GID, &e->gid) == 0, "gid");
    for (int i = 0; i < RECEIVES; i++)
        receive(e);
    must(ibv_req_notify_cq(e->cq, 0) == 0, "notify");
}

static void join(struct end *e, const struct end *peer)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = peer->mtu,
                            .dest_qp_num = peer->qp->qp_num, .min_rnr_timer = 12};
    a.ah_attr = (struct ibv_ah_attr){
        .is_global = 1, .port_num = 1,
        .grh = {.dgid = peer->gid, .sgid_index = GID, .hop_limit = 64}};
    must(ibv_modify_qp(e->qp, &a,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                           IBV_QP_MIN_RNR_TIMER) == 0,
         "rtr");
    struct ibv_qp_attr s = {.qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 3,
                            .rnr_retry = 6};
    must(ibv_modify_qp(e->qp, &s,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                           IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "rts");
}

/* Until a completion has come. */
static void take(struct end *e, int came)
{
    for (int got = 0; !got;) {
        struct pollfd fd = {e->channel->fd, POLLIN, 0};
        struct ibv_cq *cq;
        void *ctx;
        struct ibv_wc wc[8];
        poll(&fd, 1, -1);
        double begun = now();
        must(ibv_get_cq_event(e->channel, &cq, &ctx) == 0, "event");
        ibv_ack_cq_events(cq, 1);
        must(ibv_req_notify_cq(cq, 0) == 0, "notify");
        int n = ibv_poll_cq(cq, 8, wc);
        for (int i = 0; i < n; i++) {
            must(wc[i].status == IBV_WC_SUCCESS, "completion");
            got = 1;
            if (came)
                receive(e);
        }
        inside += now() - begun;
    }
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 300;
    uint32_t bytes = argc > 2 ? (uint32_t)atoi(argv[2]) : 5412;
    struct end a, b;

    make(&a, "rxe0");
    make(&b, "rxe1");
    join(&a, &b);
    join(&b, &a);
    for (int i = 0; i < rounds; i++) {
        struct ibv_sge from = {(uintptr_t)a.memory, bytes, a.mr->lkey};
        struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &from, .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                 .send_flags = IBV_SEND_SIGNALED},
                           *bad;
        wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
        wr.wr.rdma.rkey = b.mr->rkey;
        double begun = now();
        must(ibv_post_send(a.qp, &wr, &bad) == 0, "post_send");
        inside += now() - begun;
        take(&b, 1);
        take(&a, 0);
    }
    printf("%.1f\n", 1e6 * inside / rounds);
    return 0;
}
