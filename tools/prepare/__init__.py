"""./tandem prepare: any instruction, chat or text data as a file of token ids that training maps into memory.

  files.py, json_stream.py, tables.py, megatron.py   a name -> files -> records, one at a time
  formats.py                                         a record -> a sample: text, chat or ids
  template.py, masks.py, encoder.py                  samples -> ids, and which of them are learnt
  mixture.py                                         several data sets as one
  token_file.py                                      the only place that writes a token file
  command.py                                         the flags, and the order of all this
  errors.py, bounds.py                               how it ends, and what no data may ask for
  guard.py, leftovers.py                             what even an abort leaves: one line, and no file
  for_training.py                                    the same before `./tandem train`, into the cache
  cache.py                                           whose token files those are, and whether they are whole

docs/data.md says what each of them accepts.
"""
