/* Load each SavedModel that is named, as TensorFlow Serving does; whether it loads does not matter. */
#include <stdio.h>
#include <tensorflow/c/c_api.h>

int main(int argc, char **argv) {
  const char *tags[] = {"serve"};
  for (int i = 1; i < argc; i++) {
    TF_Graph *graph = TF_NewGraph();
    TF_Status *status = TF_NewStatus();
    TF_LoadSessionFromSavedModel(TF_NewSessionOptions(), NULL, argv[i], tags, 1, graph, NULL, status);
    printf("%s\n", TF_Message(status));
  }
  return 0;
}
