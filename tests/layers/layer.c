/* Linked with one whole library and those below it: a call upward does not link. */
int main(void)
{
    return 0;
}
