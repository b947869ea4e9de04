# Proves that check_site.cmake can fail: cmake -DCHECK=check_site.cmake -DSCRATCH=<folder> -P check_site_self_test.cmake
cmake_minimum_required(VERSION 3.25)

function(expect outcome file text)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(WRITE "${SCRATCH}/index.html" "<html><body id=\"top\">ok</body></html>")
  file(WRITE "${SCRATCH}/${file}" "${text}")
  execute_process(COMMAND "${CMAKE_COMMAND}" "-DHTML=${SCRATCH}" -P "${CHECK}"
                  RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
  if(result AND outcome STREQUAL "pass" OR NOT result AND outcome STREQUAL "fail")
    message(SEND_ERROR "should ${outcome}: ${file} with ${text}")
  endif()
endfunction()

expect(pass a.html [[<a href="https://example.org/">read more</a> <a href="index.html#top">top</a>]])
expect(pass a.svg  [[<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"/>]])
expect(fail a.html [[<script src="https://example.org/x.js"></script>]])
expect(fail a.html [[<script
  async src='//example.org/x.js'></script>]])
expect(fail a.html [[<link rel="stylesheet" href="http://example.org/x.css"/>]])
expect(fail a.html [[<img alt="x" src="https://example.org/x.png">]])
expect(fail a.css  [[@import "https://example.org/x.css"]])
expect(fail a.css  [[body { background: url(https://example.org/x.png) }]])
expect(fail a.svg  [[<svg xmlns="http://www.w3.org/2000/svg"><image href="https://example.org/x.png"/></svg>]])
expect(fail a.html [[<a href="nowhere.html">x</a>]])
expect(fail a.html [[<img src="../docs/figures/missing.svg">]])
expect(fail a.html [[<a href="index.html#nowhere">x</a>]])
file(REMOVE_RECURSE "${SCRATCH}")
