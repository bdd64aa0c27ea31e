/* The shapes under Relacy: an interpreter of shape.py's language whose every operation is
 * one of Relacy's, so that the same text goes to both checkers.
 *
 * stdin: numbers, as relacy_side.py writes them: a shape, then `1` and its orders for each
 * try, then `0`; and so on. stdout: a line for each try: the outcome and the executions.
 */
#include <relacy/relacy.hpp>
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef errno

#include <stdio.h>
#include <stdlib.h>

#include <iostream>
#include <vector>

enum { WORDS = 8, REGISTERS = 24, THREADS = 4 };
enum verb { GET, PUT, LOAD, STORE, ADD, SWAP, FENCE };
enum term { NUMBER, REGISTER, FINAL, EQUAL, UNEQUAL, AT_LEAST, AND, OR, PLUS };

struct Token { int kind, value; };
typedef std::vector<Token> Expression;
struct Line {
    int verb, to, word, site;
    std::vector<Expression> tests, values;
};

static std::vector<Line> threads[THREADS];
static int thread_count, start[WORDS], registers[REGISTERS], last[WORDS];
static Expression bad;
static std::vector<rl::memory_order> orders;
static rl::iteration_t executions, most;

static int number()
{
    int n;
    if (scanf("%d", &n) != 1)
        exit(0);
    return n;
}

static Expression read_expression()
{
    Expression e(number());
    for (size_t i = 0; i < e.size(); i++) {
        e[i].kind = number();
        e[i].value = number();
    }
    return e;
}

static void read_expressions(std::vector<Expression> &list)
{
    list.resize(number());
    for (size_t i = 0; i < list.size(); i++)
        list[i] = read_expression();
}

static void read_shape()
{
    thread_count = number();
    for (int i = 0; i < WORDS; i++)
        start[i] = number();
    for (int t = 0; t < thread_count; t++) {
        threads[t].resize(number());
        for (size_t i = 0; i < threads[t].size(); i++) {
            Line &line = threads[t][i];
            line.verb = number();
            line.to = number();
            line.word = number();
            line.site = number();
            read_expressions(line.tests);
            read_expressions(line.values);
        }
    }
    bad = read_expression();
    orders.resize(number());
}

static int value(const Expression &e)
{
    int stack[32], top = 0;
    for (size_t i = 0; i < e.size(); i++) {
        int kind = e[i].kind, n = e[i].value;
        if (kind <= FINAL) {
            stack[top++] = kind == NUMBER ? n : kind == REGISTER ? registers[n] : last[n];
        } else {
            int b = stack[--top], a = stack[top - 1];
            stack[top - 1] = kind == EQUAL      ? a == b
                             : kind == UNEQUAL  ? a != b
                             : kind == AT_LEAST ? a >= b
                             : kind == AND      ? a && b
                             : kind == OR       ? a || b
                                                : a + b;
        }
    }
    return stack[0];
}

static bool within(rl::memory_order lost, rl::memory_order won)
{
    return lost == rl::mo_relaxed || won == rl::mo_seq_cst ||
           (lost == rl::mo_acquire && (won == rl::mo_acquire || won == rl::mo_acq_rel));
}

template <int N> struct Suite : rl::test_suite<Suite<N>, N> {
    rl::atomic<int> words[WORDS];
    rl::var<int> bytes[WORDS];

    void before()
    {
        if (most != 0 && executions >= most)
            rl::ctx().rl_until("enough", $);
        executions++;
        for (int i = 0; i < REGISTERS; i++)
            registers[i] = 0;
        for (int i = 0; i < WORDS; i++) {
            words[i]($).store(start[i], rl::mo_relaxed);
            bytes[i]($) = start[i];
        }
    }

    bool swap(const Line &line, int &seen)
    {
        rl::memory_order won = orders[line.site], lost = orders[line.site + 1];
        bool fits = within(lost, won);
        bool same = words[line.word].compare_exchange(
            rl::bool_t<false>(), seen, value(line.values[1]), won,
            fits ? lost : rl::mo_relaxed, $);
        if (!same && !fits)
            rl::atomic_thread_fence(rl::mo_acquire, $);
        return same;
    }

    void run(const Line &line)
    {
        rl::atomic<int> &word = words[line.word];
        int &to = registers[line.to < 0 ? 0 : line.to];
        switch (line.verb) {
        case GET: to = bytes[line.word]($); break;
        case PUT: bytes[line.word]($) = value(line.values[0]); break;
        case LOAD: to = word.load(orders[line.site], $); break;
        case STORE: word.store(value(line.values[0]), orders[line.site], $); break;
        case ADD:
            to = word.rmw(rl::rmw_type_t<rl::rmw_type_add>(), value(line.values[0]),
                          orders[line.site], $);
            break;
        case SWAP: {
            int seen = value(line.values[0]);
            swap(line, seen);
            to = seen;
            break;
        }
        default:
            if (orders[line.site] != rl::mo_relaxed)
                rl::atomic_thread_fence(orders[line.site], $);
        }
    }

    void thread(unsigned t)
    {
        for (size_t i = 0; i < threads[t].size(); i++) {
            const Line &line = threads[t][i];
            bool reached = true;
            for (size_t k = 0; reached && k < line.tests.size(); k++)
                reached = value(line.tests[k]) != 0;
            if (reached)
                run(line);
        }
    }

    void after()
    {
        for (int i = 0; i < WORDS; i++)
            last[i] = words[i]($).load(rl::mo_relaxed);
        if (value(bad))
            rl::ctx().fail_test("bad", rl::test_result_user_assert_failed, $);
    }
};

template <int N> static rl::test_result_e search(rl::test_params &p)
{
    rl::ostringstream at;
    return rl::run_test<Suite<N>, rl::full_search_scheduler<N> >(p, at, false);
}

static void attempt()
{
    static const rl::memory_order NAMED[] = {rl::mo_relaxed, rl::mo_acquire,
                                             rl::mo_release, rl::mo_acq_rel,
                                             rl::mo_seq_cst};
    std::ostringstream nowhere;
    rl::test_params p;
    for (size_t i = 0; i < orders.size(); i++)
        orders[i] = NAMED[number()];
    executions = 0;
    p.progress_stream = &nowhere;
    p.output_stream = &nowhere;
    p.output_history = false;
    p.collect_history = false;
    p.execution_depth_limit = 10000;
    p.search_type = rl::sched_full;
    p.iteration_count = 0;
    rl::test_result_e result = thread_count == 2   ? search<2>(p)
                               : thread_count == 3 ? search<3>(p)
                                                   : search<4>(p);
    printf("%s %llu\n",
           result == rl::test_result_success               ? "clean"
           : result == rl::test_result_until_condition_hit ? "capped"
           : result == rl::test_result_data_race           ? "race"
           : result == rl::test_result_user_assert_failed  ? "outcome"
                                                           : rl::test_result_str(result),
           (unsigned long long)executions);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    most = argc > 1 ? strtoull(argv[1], 0, 10) : 0;
    for (;;) {
        read_shape();
        while (number() == 1)
            attempt();
    }
}
