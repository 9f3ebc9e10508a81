/* Run an exported model from C, through the same loader that TensorFlow Serving uses.

     predict MODEL_DIR INPUT_TENSOR OUTPUT_TENSOR THREADS COLUMNS < rows.f64 > means.f64

   reads doubles, COLUMNS of them to a row, from standard input, runs the model in THREADS threads at once, and writes the
   doubles of the output. All threads must return the same bits. `saved_model_cli show` prints the names of the tensors. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorflow/c/c_api.h>

static TF_Session *session;
static TF_Output input, output;
static double *rows;
static int64_t shape[2];

static void check(TF_Status *status) {
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "%s\n", TF_Message(status));
    exit(1);
  }
}

static TF_Output tensor(TF_Graph *graph, char *name) { /* "operation:index" */
  char *colon = strrchr(name, ':');
  int index = colon ? atoi(colon + 1) : 0;
  if (colon) *colon = 0;
  TF_Output found = {TF_GraphOperationByName(graph, name), index};
  if (!found.oper) {
    fprintf(stderr, "the model has no operation %s\n", name);
    exit(1);
  }
  return found;
}

static void *run(void *unused) {
  TF_Status *status = TF_NewStatus();
  size_t bytes = shape[0] * shape[1] * sizeof(double);
  TF_Tensor *value = TF_AllocateTensor(TF_DOUBLE, shape, 2, bytes), *result = NULL;
  memcpy(TF_TensorData(value), rows, bytes);
  TF_SessionRun(session, NULL, &input, &value, 1, &output, &result, 1, NULL, 0, NULL, status);
  check(status);
  TF_DeleteTensor(value);
  TF_DeleteStatus(status);
  return result;
}

int main(int argc, char **argv) {
  if (argc != 6) return fprintf(stderr, "usage: %s MODEL_DIR INPUT OUTPUT THREADS COLUMNS\n", argv[0]), 2;
  const char *tags[] = {"serve"};
  int threads = atoi(argv[4]);
  pthread_t *thread = malloc(threads * sizeof(pthread_t));
  TF_Tensor **result = malloc(threads * sizeof(TF_Tensor *));
  TF_Graph *graph = TF_NewGraph();
  TF_Status *status = TF_NewStatus();
  session = TF_LoadSessionFromSavedModel(TF_NewSessionOptions(), NULL, argv[1], tags, 1, graph, NULL, status);
  check(status);
  input = tensor(graph, argv[2]);
  output = tensor(graph, argv[3]);
  shape[1] = atoi(argv[5]);
  rows = malloc(shape[1] * sizeof(double));
  while (fread(rows + shape[0] * shape[1], sizeof(double), shape[1], stdin) == (size_t)shape[1])
    rows = realloc(rows, (++shape[0] + 1) * shape[1] * sizeof(double));
  for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, run, NULL);
  for (int i = 0; i < threads; i++) pthread_join(thread[i], (void **)&result[i]);
  size_t bytes = TF_TensorByteSize(result[0]);
  for (int i = 1; i < threads; i++)
    if (memcmp(TF_TensorData(result[0]), TF_TensorData(result[i]), bytes)) return fprintf(stderr, "threads differ\n"), 3;
  fwrite(TF_TensorData(result[0]), 1, bytes, stdout);
  return 0;
}
