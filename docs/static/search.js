// The order of search results. Sphinx adds this file to its own script.
//
// A question in words finds the guide that answers it, a name in code finds its entry in the
// reference. Each line below has the words of the questions that a guide answers. `docs/conf.py`
// makes them keywords of the page, since a search finds pages that have all of its words.
const GUIDES = {
  "start": "start install installation tutorial quickstart begin introduction",
  "moving": "migrate migration move torchrl replace",
  "guide/data": "index nest nested key keys batch size reshape device cast lock update",
  "guide/non_tensor": "string strings text object objects non-tensor metadata list",
  "guide/ragged": "ragged pad padding mask variable length lengths sequence sequences jagged nested tensor",
  "guide/records": "tensorclass dataclass typed fields field",
  "guide/modules": "module parameters ensemble vmap functional weights model state_dict",
  "guide/compile": "compile torch.compile export onnx vmap graph",
  "guide/looking": "print notebook display show image repr",
  "guide/saving": "save saving load loading store disk file files memmap memory map mapped safetensors archive weights model tensordict data",
  "guide/datasets": "dataset datasets write append writer grow create",
  "guide/gather": "load read rows row window windows random access gather slices dataset",
  "guide/loader": "shuffle shuffled batch batches dataloader loader epoch prefetch sampler mix workers data dataset",
  "guide/object_store_rows": "s3 url remote cache rows",
  "guide/streams": "stream streams video episode episodes sequences continuous",
  "guide/parallel": "map parallel process processes workers ray multiprocessing",
  "guide/checkpoints": "checkpoint checkpoints resume resuming training restore optimizer step steps kill killed continue model",
  "guide/many_ranks": "fsdp ddp rank ranks sharded dtensor mesh checkpoint distributed",
  "guide/object_stores": "s3 gcs azure cloud bucket url upload",
  "guide/distributed": "send receive recv gather reduce broadcast distributed processes",
  "guide/stores": "redis server pipe pipes share",
  "guide/interop": "huggingface hugging face xarray jax numpy dlpack pydantic convert mosaicml",
  "guide/tables": "pandas polars arrow csv json parquet table tables dataframe",
  "guide/hdf5_zarr": "hdf5 h5 h5py zarr",
  "typing": "mypy pyright typing types annotations",
  "cli": "command line inspect verify convert diff terminal",
  "differences": "differences compatibility compatible",
  "performance": "performance speed benchmark fast overhead",
};

var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    if (/^\S*([_.]|[a-z][A-Z])\S*$/.test(query)) return score; // a name in code
    const stemmer = new Stemmer();
    const stems = (words) =>
      splitQuery(words.toLowerCase())
        .filter((word) => !stopwords.has(word))
        .map((word) => stemmer.stemWord(word));
    const asked = stems(query);
    const answered = new Set(stems(GUIDES[docname] ?? ""));
    const found = asked.filter((word) => answered.has(word)).length;
    // The shorter its list of words, the more a guide is about each of them.
    const share = found === 0 ? 0 : found / asked.length + 1 / (10 + answered.size);
    return score + 60 * share + (docname.startsWith("guide/") ? 8 : 0);
  },

  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
